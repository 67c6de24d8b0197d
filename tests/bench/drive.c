// SPDX-License-Identifier: Apache-2.0
// Starts the programs that are measured, and measures them. A small static program, so that it adds no noise: a large
// parent is slow to fork, and a child's peak RSS is never reported smaller than its parent's.
//
// Usage: drive PLAN SAMPLES ROUNDS WARMUP
//
// PLAN is a file of lines, fields separated by tabs:
//
//   group NAME            the steps that follow belong together; groups take turns
//   env NAME=VALUE        set for all calls of the group (@ is replaced by the number of the container)
//   netns PATH            the network namespace of all calls of the group, if it is not that of this program
//   call ID EXECUTABLE ARGUMENTS COMMAND COUNT CONFIG RESULT
//                         one call for each of the containers 1..COUNT, all started at once; CONFIG is the file that
//                         is its stdin ("-": empty), ARGUMENTS are separated by the character 0x1f and begin
//                         with argv[0], RESULT is "keep" (stdout goes to the file that a later "use"
//                         lays under prevResult) or "-"
//   put FILE TEXT         writes a file before what follows
//
// Every round runs every group once, in a random order: the group before has an effect of up to 200 us, since the kernel is
// still busy with what it deleted. For every call a line is written to SAMPLES:
//
//   ID ROUND CONTAINER WALL_NS USER_US SYS_US MAXRSS_KB MINOR_FAULTS SWITCHES
//
// and, where COUNT is more than 1, one with container 0 and the WALL_NS of all together. Rounds before the
// WARMUP-th are not written. stdout gets "ROUND ROUNDS" lines, for a display of progress.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    STEPS_MAX = 256,
    GROUPS_MAX = 64,
    ENV_MAX = 24,
    ARGUMENTS_MAX = 12,
    FIELDS_MAX = 8,
    CALLS_MAX = 64, // and no config or result larger than a pipe takes without a reader (64 KiB)
};

struct step {
    enum { CALL, PUT } kind;
    const char *field[FIELDS_MAX];
    int count;
};

struct group {
    const char *env[ENV_MAX];
    int env_count;
    const char *netns;
    int first, end;
};

struct call {
    pid_t pid;
    int output;
    int64_t started_ns, ended_ns;
    struct rusage used;
};

static struct step steps[STEPS_MAX];
static int step_count;
static struct group groups[GROUPS_MAX];
static int group_count;
static FILE *samples;
static int home; // the network namespace of this program

static void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("drive: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void read_step(char *fields[], int count)
{
    if (group_count == 0 || step_count == STEPS_MAX)
        fail("a step outside of a group, or more than %d", STEPS_MAX);
    struct step *step = &steps[step_count++];
    step->kind = strcmp(fields[0], "put") == 0 ? PUT : CALL;
    if (count != (step->kind == PUT ? 3 : 8))
        fail("%s has %d fields", fields[0], count);
    for (int i = 0; i < count; i++)
        step->field[i] = fields[i];
    if (step->kind == CALL) {
        step->count = atoi(fields[5]);
        if (step->count < 1 || step->count > CALLS_MAX)
            fail("%s at once; 1 to %d are possible", fields[5], CALLS_MAX);
    }
    groups[group_count - 1].end = step_count;
}

static void read_line(char *line)
{
    char *fields[FIELDS_MAX + 1], *rest = line;
    int count = 0;
    while (count <= FIELDS_MAX && (fields[count] = strsep(&rest, "\t")))
        count++;
    if (strcmp(fields[0], "group") == 0) {
        if (group_count == GROUPS_MAX)
            fail("more than %d groups", GROUPS_MAX);
        groups[group_count].first = groups[group_count].end = step_count;
        group_count++;
    } else if (strcmp(fields[0], "env") == 0 && group_count > 0 && count == 2) {
        struct group *group = &groups[group_count - 1];
        if (group->env_count == ENV_MAX)
            fail("more than %d variables", ENV_MAX);
        group->env[group->env_count++] = fields[1];
    } else if (strcmp(fields[0], "netns") == 0 && group_count > 0 && count == 2) {
        groups[group_count - 1].netns = fields[1];
    } else {
        read_step(fields, count);
    }
}

static void read_plan(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        fail("cannot open %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, file) > 0) {
        line[strcspn(line, "\n")] = 0;
        if (*line)
            read_line(strdup(line)); // lives as long as the plan, which is as long as we do
    }
    free(line);
    fclose(file);
}

// Copies a file into a pipe; the last byte of the file, a brace, is left out when something is to follow.
static void pour(int to, const char *path, size_t leave_out)
{
    char bytes[4096];
    ssize_t length;
    int from = open(path, O_RDONLY | O_CLOEXEC);
    if (from < 0)
        fail("cannot open %s: %s", path, strerror(errno));
    off_t left = lseek(from, 0, SEEK_END) - (off_t)leave_out;
    lseek(from, 0, SEEK_SET);
    while (left > 0 && (length = read(from, bytes, sizeof bytes)) > 0) {
        if (length > left)
            length = left;
        if (write(to, bytes, (size_t)length) != length)
            fail("%s does not fit into a pipe: %s", path, strerror(errno));
        left -= length;
    }
    close(from);
}

static void put_text(int to, const char *text)
{
    if (write(to, text, strlen(text)) < 0)
        fail("cannot write to a pipe: %s", strerror(errno));
}

static void result_path(char path[64], const struct group *group, int container)
{
    snprintf(path, 64, "result.%d.%d", (int)(group - groups), container);
}

// The read end of a pipe that holds all of a call's stdin.
static int input_of(const struct step *step, const struct group *group, int container)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        fail("cannot make a pipe: %s", strerror(errno));
    bool with_result = strcmp(step->field[7], "use") == 0;
    if (strcmp(step->field[6], "-") != 0)
        pour(ends[1], step->field[6], with_result);
    if (with_result) {
        char path[64];
        result_path(path, group, container);
        put_text(ends[1], ",\"prevResult\":");
        pour(ends[1], path, 0);
        put_text(ends[1], "}");
    }
    close(ends[1]);
    // Only the writing was not to wait; plugins get a pipe as runtimes make it.
    fcntl(ends[0], F_SETFL, 0);
    return ends[0];
}

static void fill_environment(char *environment[], char *texts, size_t size, const struct group *group,
                             const struct step *step, int container)
{
    int count = 0;
    size_t used = (size_t)snprintf(texts, size, "CNI_COMMAND=%s", step->field[4]) + 1;
    environment[count++] = texts;
    for (int i = 0; i < group->env_count; i++) {
        char *to = texts + used;
        environment[count++] = to;
        for (const char *from = group->env[i]; *from && used + 8 < size; from++)
            used += (size_t)(*from == '@' ? sprintf(texts + used, "%d", container)
                                          : sprintf(texts + used, "%c", *from));
        texts[used++] = 0;
        if (used + 8 >= size)
            fail("the environment is too large");
    }
    environment[count] = NULL;
}

// Copies the text of the arguments to `text`, and cuts it.
static void fill_arguments(char *arguments[], char *text, size_t size, const char *from)
{
    int count = 0;
    char *rest = text;
    if ((size_t)snprintf(text, size, "%s", from) >= size)
        fail("the arguments are too long");
    while (count < ARGUMENTS_MAX && (arguments[count] = strsep(&rest, "\x1f")))
        count++;
    if (rest)
        fail("more than %d arguments", ARGUMENTS_MAX);
    arguments[count] = NULL;
}

static void start(struct call *call, const struct group *group, const struct step *step, int container, int input)
{
    char texts[2048], *environment[ENV_MAX + 2];
    char words[2048], *arguments[ARGUMENTS_MAX + 1];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        fail("cannot make a pipe: %s", strerror(errno));
    fill_environment(environment, texts, sizeof texts, group, step, container);
    fill_arguments(arguments, words, sizeof words, step->field[3]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
    call->started_ns = now_ns();
    int error = posix_spawn(&call->pid, step->field[2], &actions, NULL, arguments, environment);
    if (error)
        fail("cannot start %s: %s", step->field[2], strerror(error));
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    call->output = ends[0];
}

static void wait_for_all(struct call *calls, const struct step *step, bool *failed)
{
    for (int left = step->count; left > 0; left--) {
        struct rusage used;
        int status;
        pid_t pid = wait4(-1, &status, 0, &used);
        int64_t ended_ns = now_ns();
        if (pid < 0)
            fail("cannot wait: %s", strerror(errno));
        for (int i = 0; i < step->count; i++) {
            if (calls[i].pid == pid) {
                calls[i].ended_ns = ended_ns;
                calls[i].used = used;
            }
        }
        if (status != 0) {
            fprintf(stderr, "drive: %s failed with status %#x\n", step->field[1], (unsigned)status);
            *failed = true;
        }
    }
}

// Keeps what a call printed, if it is to be kept; shows it if something failed.
static void take_output(struct call *call, const struct group *group, const struct step *step, int container,
                        bool failed)
{
    char bytes[4096], path[64];
    ssize_t length;
    int file = -1;
    if (strcmp(step->field[7], "keep") == 0) {
        result_path(path, group, container);
        file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (file < 0)
            fail("cannot write %s: %s", path, strerror(errno));
    }
    while ((length = read(call->output, bytes, sizeof bytes)) > 0) {
        if (file >= 0 && write(file, bytes, (size_t)length) != length)
            fail("cannot write %s: %s", path, strerror(errno));
        if (failed)
            fwrite(bytes, 1, (size_t)length, stderr);
    }
    if (file >= 0)
        close(file);
    close(call->output);
}

static void write_samples(const struct call *calls, const struct step *step, int round)
{
    int64_t first_ns = calls[0].started_ns, last_ns = 0;
    for (int i = 0; i < step->count; i++) {
        const struct call *call = &calls[i];
        const struct rusage *used = &call->used;
        if (call->ended_ns > last_ns)
            last_ns = call->ended_ns;
        fprintf(samples, "%s %d %d %lld %lld %lld %ld %ld %ld\n", step->field[1], round, i + 1,
                (long long)(call->ended_ns - call->started_ns),
                (long long)used->ru_utime.tv_sec * 1000000 + used->ru_utime.tv_usec,
                (long long)used->ru_stime.tv_sec * 1000000 + used->ru_stime.tv_usec, used->ru_maxrss,
                used->ru_minflt, used->ru_nvcsw + used->ru_nivcsw);
    }
    if (step->count > 1)
        fprintf(samples, "%s %d 0 %lld 0 0 0 0 0\n", step->field[1], round, (long long)(last_ns - first_ns));
}

static void run_call(const struct group *group, const struct step *step, int round, bool written)
{
    static struct call calls[CALLS_MAX];
    static int inputs[CALLS_MAX];
    bool failed = false;
    for (int i = 0; i < step->count; i++)
        inputs[i] = input_of(step, group, i + 1);
    for (int i = 0; i < step->count; i++)
        start(&calls[i], group, step, i + 1, inputs[i]);
    wait_for_all(calls, step, &failed);
    for (int i = 0; i < step->count; i++) {
        close(inputs[i]);
        take_output(&calls[i], group, step, i + 1, failed);
    }
    if (failed)
        exit(1);
    if (written)
        write_samples(calls, step, round);
}

static void put(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0)
        fail("cannot write %s: %s", path, strerror(errno));
    put_text(file, text);
    close(file);
}

static void enter(const char *netns)
{
    int file = open(netns, O_RDONLY | O_CLOEXEC);
    if (file < 0 || setns(file, CLONE_NEWNET) != 0)
        fail("cannot enter %s: %s", netns, strerror(errno));
    close(file);
}

static void run_group(const struct group *group, int round, bool written)
{
    if (group->netns)
        enter(group->netns);
    for (int i = group->first; i < group->end; i++) {
        if (steps[i].kind == PUT)
            put(steps[i].field[1], steps[i].field[2]);
        else
            run_call(group, &steps[i], round, written);
    }
    if (group->netns && setns(home, CLONE_NEWNET) != 0)
        fail("cannot go back: %s", strerror(errno));
}

// Fisher and Yates, with the generator of the POSIX example: the same order in every run.
static void shuffle(int order[])
{
    static uint32_t state = 1;
    for (int i = group_count - 1; i > 0; i--) {
        state = state * 1103515245 + 12345;
        int j = (int)(state >> 16) % (i + 1), moved = order[i];
        order[i] = order[j];
        order[j] = moved;
    }
}

int main(int count, char **values)
{
    if (count != 5)
        fail("usage: drive PLAN SAMPLES ROUNDS WARMUP");
    int rounds = atoi(values[3]), warmup = atoi(values[4]);
    read_plan(values[1]);
    home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    samples = fopen(values[2], "w");
    if (!samples)
        fail("cannot write %s: %s", values[2], strerror(errno));
    int64_t told_ns = 0;
    int order[GROUPS_MAX];
    for (int i = 0; i < group_count; i++)
        order[i] = i;
    for (int round = 0; round < warmup + rounds; round++) {
        shuffle(order);
        for (int i = 0; i < group_count; i++)
            run_group(&groups[order[i]], round - warmup, round >= warmup);
        if (now_ns() - told_ns > 500000000) {
            told_ns = now_ns();
            printf("%d %d\n", round + 1, warmup + rounds);
            fflush(stdout);
        }
    }
    if (fclose(samples) != 0)
        fail("cannot write %s: %s", values[2], strerror(errno));
    return 0;
}
