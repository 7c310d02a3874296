// As the real one with PAM: root's own process waits for the command, and no user may signal it.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int status = argc;
    if (setgid(0) || setuid(0)) return 1;
    pid_t pid = fork();
    if (pid == 0) { execvp(argv[2], argv + 2); _exit(127); }
    while (waitpid(pid, &status, 0) != pid) {}
    if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
    signal(WTERMSIG(status), SIG_DFL);
    return kill(getpid(), WTERMSIG(status));
}
