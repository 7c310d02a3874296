# What is tried on a fresh Debian: NOW is this version, BEFORE the one before.
end() {
    journalctl --no-pager -n 40 -u forewarn -u forewarn-agent
    systemctl --no-block --force exit
}
trap end EXIT
set -ex
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -qq -y --no-install-recommends "$@"; }
SOCKETS="forewarn.socket forewarn-relay.socket"
SERVICES="forewarn forewarn-agent forewarn-relay"
processes() { for unit in $SERVICES; do systemctl show -P MainPID $unit; done; }
restarted() { processes >/now && ! grep -Fx -e 0 -f /before /now; }
soon() { for _ in $(seq 99); do ! "$@" || return 0; sleep 0.2; done; false; }

install /debs/forewarn_BEFORE.deb
systemctl is-active forewarn
systemctl is-enabled forewarn
test "$(forewarn --version)" = "forewarn NOW"
for part in man/man1/forewarn.1.gz man/man5/forewarn.toml.5.gz \
    bash-completion/completions/forewarn zsh/vendor-completions/_forewarn \
    fish/vendor_completions.d/forewarn.fish forewarn/schemas/service.json; do
    test -e /usr/share/$part
done
echo '{"machine": [{"name": "web-0"}]}' | forewarn fleet apply -
echo '# a change of ours' >>/etc/forewarn/forewarn.toml
systemctl stop forewarn
echo the token of a host >/etc/forewarn/relay.token
systemctl enable --now $SOCKETS forewarn forewarn-agent
systemctl enable --now --no-block forewarn-relay
processes >/before

install /debs/forewarn_NOW.deb
soon restarted
systemctl is-active $SOCKETS
systemctl reload forewarn
soon systemctl reload forewarn-agent
forewarn fleet list --json | grep web-0
grep 'a change of ours' /etc/forewarn/forewarn.toml

apt-get remove -qq -y forewarn
if systemctl is-active $SERVICES $SOCKETS; then false; fi
test -e /var/lib/forewarn/forewarn.db
install /debs/forewarn_NOW.deb
soon restarted
systemctl is-active $SOCKETS
forewarn fleet list --json | grep web-0
rm /etc/forewarn/relay.token
apt-get purge -qq -y forewarn
if ls -d /opt/forewarn /etc/forewarn /var/lib/forewarn* /var/lib/private/forewarn*; then false; fi

install /debs/forewarn-agent_NOW.deb
systemctl is-enabled forewarn-agent
systemctl cat forewarn-agent | grep ExecStart=/usr/bin/forewarn
install /debs/forewarn_NOW.deb
if dpkg -s forewarn-agent | grep 'Status: install ok installed'; then false; fi
systemctl is-active forewarn
soon systemctl is-active forewarn-agent
forewarn agent check --config /etc/forewarn/agent.toml
apt-get purge -qq -y forewarn-agent
systemctl is-enabled forewarn-agent
install /debs/forewarn-agent_NOW.deb
touch /var/lib/forewarn-agent/ours
apt-get purge -qq -y forewarn
systemctl is-active forewarn-agent
systemctl is-enabled forewarn-agent
test -e /var/lib/forewarn-agent/ours
apt-get purge -qq -y forewarn-agent
if ls -d /opt/forewarn /etc/forewarn /var/lib/forewarn* /var/lib/private/forewarn*; then false; fi
echo it is all undone
