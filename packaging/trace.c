// SPDX-License-Identifier: Apache-2.0
// Runs a program one instruction at a time, and writes the addresses of the instructions to a file: relative to the
// first mapping of the program, in hexadecimal, one a line, each once.
//
//     trace FILE PROGRAM [ARGUMENT]...
//
// Children and threads of the program run untraced. The exit code is that of the program.

#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROGRAM_BYTES_MAX = 8 << 20 };

static void fail(const char *doing)
{
    fprintf(stderr, "trace: cannot ");
    perror(doing);
    exit(125);
}

// The address of the first mapping of a process's executable.
static unsigned long start_of(pid_t pid)
{
    char path[64], executable[4096], line[4352];
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    ssize_t length = readlink(path, executable, sizeof executable - 1);
    if (length < 0)
        fail("read a link in /proc");
    executable[length] = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "r");
    while (maps && fgets(line, sizeof line, maps)) {
        if (strstr(line, executable)) {
            fclose(maps);
            return strtoul(line, NULL, 16);
        }
    }
    fail("find the program in /proc");
    return 0;
}

int main(int count, char *arguments[])
{
    static bool seen[PROGRAM_BYTES_MAX];
    if (count < 3) {
        fprintf(stderr, "usage: trace FILE PROGRAM [ARGUMENT]...\n");
        return 125;
    }
    FILE *file = fopen(arguments[1], "we");
    if (!file)
        fail(arguments[1]);
    pid_t pid = fork();
    if (pid < 0)
        fail("fork");
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execv(arguments[2], arguments + 2);
        fail(arguments[2]);
    }
    int status, signal = 0;
    if (waitpid(pid, &status, 0) < 0 || !WIFSTOPPED(status))
        return 125;
    unsigned long start = start_of(pid);
    while (WIFSTOPPED(status)) {
        struct user_regs_struct registers;
        if (ptrace(PTRACE_GETREGS, pid, 0, &registers) < 0)
            fail("read the registers");
        unsigned long offset = registers.rip - start;
        if (offset < PROGRAM_BYTES_MAX && !seen[offset]) {
            seen[offset] = true;
            fprintf(file, "%lx\n", offset);
        }
        if (ptrace(PTRACE_SINGLESTEP, pid, 0, signal) < 0 || waitpid(pid, &status, 0) < 0)
            fail("go on");
        // The stop after a step is no signal of the program.
        signal = WIFSTOPPED(status) && WSTOPSIG(status) != SIGTRAP ? WSTOPSIG(status) : 0;
    }
    if (fclose(file) != 0)
        fail(arguments[1]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 125;
}
