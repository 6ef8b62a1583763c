/* Counters and the virtual clock, read live or written at exit. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rt.h"

enum { COUNTERS = 64 };

static struct { const char *what; long value; } counters[COUNTERS];
static rt_clock *clocks, **last = &clocks;

void sim_count(const char *what, long by)
{
    int i = 0;
    pthread_mutex_lock(&rt.inner);
    while (i < COUNTERS - 1 && counters[i].what && strcmp(counters[i].what, what))
        i++;
    counters[i].what = what;
    counters[i].value += by;
    pthread_mutex_unlock(&rt.inner);
}

rt_clock *rt_clock_new(int device, long stream)
{
    rt_clock *made = calloc(1, sizeof *made);
    if (made) {
        made->device = device;
        made->stream = stream;
        *last = made;
        last = &made->next;
    }
    return made;
}

/* Text that goes on growing where there is room, and counts on where there is not. */
typedef struct {
    char *at;
    size_t room, used;
} text;

static void put(text *t, const char *format, ...)
{
    va_list args;
    size_t left = t->used < t->room ? t->room - t->used : 0;
    va_start(args, format);
    int n = vsnprintf(left ? t->at + t->used : NULL, left, format, args);
    va_end(args);
    t->used += n > 0 ? (size_t)n : 0;
}

static void put_all(text *t)
{
    size_t blocks, bytes;
    double busy = 0;
    put(t, "{\"counters\": {");
    pthread_mutex_lock(&rt.inner);
    for (int i = 0; i < COUNTERS && counters[i].what; i++)
        put(t, "%s\"%s\": %ld", i ? ", " : "", counters[i].what, counters[i].value);
    pthread_mutex_unlock(&rt.inner);
    rt_memory_living(&blocks, &bytes);
    put(t, "}, \"alive\": {\"blocks\": %zu, \"bytes\": %zu, \"streams\": %ld, \"events\": %ld}",
        blocks, bytes, rt.streams, rt.events);
    put(t, ", \"streams\": [");
    for (rt_clock *c = clocks; c; c = c->next) {
        put(t, "%s{\"device\": %d, \"stream\": %ld, \"tasks\": %ld, \"busy\": %.9g, "
               "\"clock\": %.9g, \"bytes\": %.15g}", c == clocks ? "" : ", ", c->device,
            c->stream, c->tasks, c->busy, c->now, c->bytes);
        busy += c->busy;
    }
    put(t, "], \"busy\": %.9g}\n", busy);
}

/* How long the text is; it is whole if that is less than n. */
ACL_API size_t umbel_simulator_counters(char *json, size_t n);
size_t umbel_simulator_counters(char *json, size_t n)
{
    text t = {json, n, 0};
    RT_HOLD;
    put_all(&t);
    return t.used;
}

__attribute__((destructor)) static void at_exit(void)
{
    const char *path = getenv("UMBEL_CANN_SIMULATOR_REPORT");
    if (!path || !*path || rt.forked || !(rt.inits || rt.finalized))
        return;
    size_t n = umbel_simulator_counters(NULL, 0) + 1024;
    char *json = malloc(n);
    FILE *file = fopen(path, "w");
    if (json && file) {
        umbel_simulator_counters(json, n);
        fputs(json, file);
    }
    if (file)
        fclose(file);
    free(json);
}
