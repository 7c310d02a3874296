// forewarn emulator -- node --test test_handler.mjs
import assert from "node:assert";
import test from "node:test";

const events =
  process.env.FOREWARN_ENDPOINT + "/metadata/scheduledevents?api-version=2020-07-01";
const headers = { Metadata: "true" };

// The handler under test: yours is in a module of its own.
async function handle(drain) {
  const { Events } = await (await fetch(events, { headers })).json();
  const ids = Events.filter((event) => event.EventStatus === "Scheduled").map((event) => event.EventId);
  if (ids.length === 0 || !(await drain())) return;
  const body = JSON.stringify({ StartRequests: ids.map((EventId) => ({ EventId })) });
  await fetch(events, { method: "POST", headers, body });
}

async function operate(path, body) {
  const asked = { method: "POST", headers: { "Content-Type": "application/json" } };
  const url = `${process.env.FOREWARN_OPERATOR}/v1/${path}`;
  const answer = await fetch(url, body && { ...asked, body: JSON.stringify(body) });
  assert.ok(answer.ok, await answer.clone().text());
  return answer.json();
}

async function reboot() {
  const { maintenance } = await operate("maintenances", { event_type: "Reboot", machines: ["vm-0"] });
  const path = `maintenances/${maintenance.number}`;
  return async () => (await operate(path)).operations[0].start_cause;
}

async function end() { // so that the next test begins with a machine that is up
  await operate("finish", {});
  await fetch(events, { headers }); // the machine is back
}

test("it approves once it has drained", async () => {
  const cause = await reboot();
  await handle(async () => true);
  assert.equal(await cause(), "approved");
  await end();
});

test("a drain that fails is not approved", async () => {
  const cause = await reboot();
  await handle(async () => false);
  await operate("clock/advance", { seconds: 900 });
  assert.equal(await cause(), "notice-over");
  await end();
});
