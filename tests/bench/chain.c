// SPDX-License-Identifier: Apache-2.0
// Starts the plugins of a list one after the other, as libcni does: each is a process that gets its configuration and the
// result of the plugin before on stdin. It reads no list, takes no lock and asks for no versions.
//
// Usage: chain DIRECTORY PLUGIN...
//        chain many COUNT DIRECTORY PLUGIN
//
// DIRECTORY has the configurations 0.json, 1.json, …, one for each PLUGIN, an executable. CNI_COMMAND and the other
// variables are those of this process. ADD writes the last result to DIRECTORY/result, and prints it. DEL runs the list
// backwards, with that result. `many` adds containers many-1 to many-COUNT, in the namespaces of CHAIN_NETNS,
// a pattern with one %d.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT_MAX = 65536, NAMESPACES = 64 }; // a pipe takes as much without a reader

extern char **environ;

struct text {
    size_t length;
    char bytes[TEXT_MAX];
};

static void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("chain: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(1);
}

static void read_all(int from, struct text *to)
{
    ssize_t length;
    to->length = 0;
    while ((length = read(from, to->bytes + to->length, TEXT_MAX - to->length)) > 0)
        to->length += (size_t)length;
    if (length < 0 || to->length == TEXT_MAX)
        fail("cannot read: %s", length < 0 ? strerror(errno) : "too long");
}

static void write_all(int to, const char *bytes, size_t length)
{
    if (write(to, bytes, length) != (ssize_t)length)
        fail("cannot write: %s", strerror(errno));
}

static void read_file(const char *path, struct text *to)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        fail("cannot open %s: %s", path, strerror(errno));
    read_all(file, to);
    close(file);
}

// The read end of a pipe with a configuration, and the result in it if there is one.
static int input_of(const char *directory, int number, const struct text *result)
{
    static struct text config;
    static const char key[] = ",\"prevResult\":";
    char path[256];
    int ends[2];
    snprintf(path, sizeof path, "%s/%d.json", directory, number);
    read_file(path, &config);
    if (pipe2(ends, O_CLOEXEC) < 0)
        fail("cannot make a pipe: %s", strerror(errno));
    if (config.length + result->length + sizeof key > TEXT_MAX)
        fail("%s does not fit into a pipe", path);
    if (result->length == 0) {
        write_all(ends[1], config.bytes, config.length);
    } else {
        write_all(ends[1], config.bytes, config.length - 1);
        write_all(ends[1], key, sizeof key - 1);
        write_all(ends[1], result->bytes, result->length);
        write_all(ends[1], "}", 1);
    }
    close(ends[1]);
    return ends[0];
}

static void call(const char *directory, char *plugin, int number, const struct text *result, struct text *output)
{
    char *arguments[] = {plugin, NULL};
    int ends[2], input = input_of(directory, number, result), status;
    pid_t pid;
    if (pipe2(ends, O_CLOEXEC) < 0)
        fail("cannot make a pipe: %s", strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    int error = posix_spawn(&pid, plugin, &actions, NULL, arguments, environ);
    if (error)
        fail("cannot start %s: %s", plugin, strerror(error));
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    close(input);
    read_all(ends[0], output);
    close(ends[0]);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        fail("%s failed with status %#x: %.*s", plugin, (unsigned)status, (int)output->length, output->bytes);
}

static void add(const char *directory, char *plugins[], int count)
{
    static struct text results[2];
    char path[256], aside[300];
    for (int i = 0; i < count; i++)
        call(directory, plugins[i], i, &results[i % 2], &results[(i + 1) % 2]);
    const struct text *last = &results[count % 2];
    snprintf(path, sizeof path, "%s/result", directory);
    snprintf(aside, sizeof aside, "%s.new", path);
    int file = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0)
        fail("cannot write %s: %s", aside, strerror(errno));
    write_all(file, last->bytes, last->length);
    close(file);
    if (rename(aside, path) != 0)
        fail("cannot rename %s: %s", aside, strerror(errno));
    write_all(STDOUT_FILENO, last->bytes, last->length);
}

static void del(const char *directory, char *plugins[], int count)
{
    static struct text result, output;
    char path[256];
    snprintf(path, sizeof path, "%s/result", directory);
    read_file(path, &result);
    for (int i = count - 1; i >= 0; i--)
        call(directory, plugins[i], i, &result, &output);
    unlink(path);
}

static void add_many(int count, const char *directory, char *plugin)
{
    static struct text nothing, output;
    char text[256];
    const char *pattern = getenv("CHAIN_NETNS"), *place = pattern ? strstr(pattern, "%d") : NULL;
    if (!place)
        fail("CHAIN_NETNS is no pattern");
    setenv("CNI_COMMAND", "ADD", 1);
    for (int i = 1; i <= count; i++) {
        snprintf(text, sizeof text, "%.*s%d%s", (int)(place - pattern), pattern, i % NAMESPACES + 1, place + 2);
        setenv("CNI_NETNS", text, 1);
        snprintf(text, sizeof text, "many-%d", i);
        setenv("CNI_CONTAINERID", text, 1);
        snprintf(text, sizeof text, "eth%d", i);
        setenv("CNI_IFNAME", text, 1);
        call(directory, plugin, 0, &nothing, &output);
    }
}

int main(int count, char **values)
{
    const char *command = getenv("CNI_COMMAND");
    if (count == 5 && strcmp(values[1], "many") == 0)
        add_many(atoi(values[2]), values[3], values[4]);
    else if (count < 3 || !command)
        fail("usage: chain DIRECTORY PLUGIN...");
    else if (strcmp(command, "ADD") == 0)
        add(values[1], values + 2, count - 2);
    else
        del(values[1], values + 2, count - 2);
    return 0;
}
