/* The chip that is simulated, from its file, and the faults asked for by the environment. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rt.h"

enum { PATH = 4096 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char *text;   /* the file, lines ended by 0 */
static size_t size;
static char path[PATH];

static pthread_once_t fault_once = PTHREAD_ONCE_INIT;
static char faults[1024];

/* chips/NAME.txt beside the folder that this library lies in. */
static void find(void)
{
    const char *name = getenv("UMBEL_CANN_SIMULATOR");
    Dl_info info;
    char *slash;
    if (!name || !*name)
        name = "910B";
    if (!dladdr(path, &info) || !info.dli_fname)
        info.dli_fname = "";
    snprintf(path, sizeof path, "%.*s", PATH - 64, info.dli_fname);
    slash = strrchr(path, '/');
    snprintf(slash ? slash + 1 : path, 64, "%s%.32s.txt", slash ? "../chips/" : "chips/", name);
}

static void load(void)
{
    find();
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    size_t room = 1 << 20;
    text = calloc(1, room);
    size = text ? fread(text, 1, room - 1, file) : 0;
    fclose(file);
    for (size_t i = 0; i < size; i++)
        if (text[i] == '\n')
            text[i] = 0;
}

int rt_chip_load(void)
{
    pthread_once(&once, load);
    if (text)
        return 0;
    return sim_fail(ACL_ERROR_INVALID_FILE, "no chip file %s: UMBEL_CANN_SIMULATOR", path);
}

const char *sim_chip(const char *key)
{
    size_t n = strlen(key);
    pthread_once(&once, load);
    for (const char *line = text; line && line < text + size; line += strlen(line) + 1) {
        const char *value = line + n;
        if (*line != '#' && !strncmp(line, key, n) && (!*value || strchr(" \t", *value)))
            return value + strspn(value, " \t");
    }
    return NULL;
}

double rt_chip_number(const char *key, double otherwise)
{
    const char *value = sim_chip(key);
    return value && *value ? strtod(value, NULL) : otherwise;
}

bool rt_chip_says(const char *key, const char *value)
{
    const char *said = sim_chip(key);
    return said && !strcmp(said, value);
}

static void read_faults(void)
{
    const char *given = getenv("UMBEL_CANN_FAULT");
    snprintf(faults, sizeof faults, "%s", given ? given : "");
}

void rt_faults(const char *given)
{
    pthread_once(&fault_once, read_faults);
    pthread_mutex_lock(&rt.inner);
    snprintf(faults, sizeof faults, "%s", given);
    pthread_mutex_unlock(&rt.inner);
}

/* Calls found(value, length, arg) for the entries of a name until it answers true. */
static bool entry(const char *name, bool (*found)(const char *, size_t, void *), void *arg)
{
    size_t n = strlen(name);
    bool end = false;
    pthread_once(&fault_once, read_faults);
    pthread_mutex_lock(&rt.inner);
    for (const char *at = faults; !end && *at; at += strspn(at, ", ")) {
        size_t length = strcspn(at, ", ");
        if (length > n && !strncmp(at, name, n) && at[n] == '=')
            end = found(at + n + 1, length - n - 1, arg);
        at += length;
    }
    pthread_mutex_unlock(&rt.inner);
    return end;
}

static bool take_number(const char *value, size_t length, void *arg)
{
    (void)length;
    *(long *)arg = strtol(value, NULL, 0);
    return true;
}

static bool same(const char *value, size_t length, void *arg)
{
    const char *wanted = arg;
    return strlen(wanted) == length && !strncmp(value, wanted, length);
}

long sim_fault(const char *name)
{
    long number = -1;
    entry(name, take_number, &number);
    return number;
}

int sim_fault_is(const char *name, const char *value)
{
    return entry(name, same, (void *)value);
}
