#include "nnop_object.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEAD = 0x80000000, KEPT = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *kept[KEPT]; /* the last ones that died, in a ring */
static unsigned next_kept;

/* "leaked NAME" is what is counted: at exit it says how many were left over. */
static const char *const leaked[] = {
    "leaked aclTensor", "leaked aclScalar", "leaked aclIntArray", "leaked aclFloatArray",
    "leaked aclBoolArray", "leaked aclTensorList", "leaked aclScalarList",
    "leaked aclOpExecutor",
};

/* NULL: no kind. */
static const char *kind_name(uint32_t kind)
{
    uint32_t number = kind - NNOP_TENSOR;
    return number < sizeof leaked / sizeof *leaked ? leaked[number] + strlen("leaked ") : NULL;
}

/* Beside what is alive, how many were made. */
static void count(nnop_kind kind, long by)
{
    sim_count(leaked[kind - NNOP_TENSOR], by);
    if (by > 0)
        sim_count(kind == NNOP_EXECUTOR ? "executors" : "descriptors", by);
}

void nnop_die(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fputs("umbel-cann-simulator: ", stderr);
    vfprintf(stderr, format, values);
    va_end(values);
    fputs("\n  On a device this corrupts memory, so the simulator ends the process.\n", stderr);
    abort();
}

void *nnop_new(nnop_kind kind, size_t size)
{
    uint32_t *object = calloc(1, size);
    if (object == NULL)
        return NULL;
    *object = kind;
    count(kind, 1);
    return object;
}

void *nnop_alive(const void *object, nnop_kind kind, const char *function)
{
    uint32_t found = *(const volatile uint32_t *)object;
    const char *name = kind_name(kind), *other = kind_name(found & ~(uint32_t)DEAD);
    if (found == (uint32_t)kind)
        return (void *)(uintptr_t)object;
    if (found == ((uint32_t)kind | DEAD))
        nnop_die("%s: the %s %p was used up or destroyed before", function, name, object);
    if (other != NULL)
        nnop_die("%s: expected an %s, got an %s (%p)", function, name, other, object);
    nnop_die("%s: expected an %s, got a pointer to something else (%p)", function, name,
             object);
}

void nnop_dead(void *object, nnop_kind kind)
{
    *(volatile uint32_t *)object |= DEAD;
    count(kind, -1);
    pthread_mutex_lock(&lock);
    void *oldest = kept[next_kept];
    kept[next_kept] = object;
    next_kept = (next_kept + 1) % KEPT;
    pthread_mutex_unlock(&lock);
    free(oldest);
}
