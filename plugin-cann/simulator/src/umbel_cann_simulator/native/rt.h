/* What the parts of the runtime share. One lock guards everything but what a thread owns; it is
 * held for short, and never while a task runs. */
#ifndef RT_H
#define RT_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "sim.h"

enum { RT_DEVICES = 16, RT_TEXT = 512, RT_JUNK = 0xff };

/* Handles are numbers that are never used again, so that a dead one is known as dead. */
enum rt_kind { RT_CONTEXT, RT_STREAM, RT_EVENT, RT_MODEL, RT_PHYSICAL };

/* A task's place in its stream. What is `control` costs nothing, is no target of faults, and
 * runs even after a failure, so that no wait for it lasts for ever. */
typedef struct rt_task {
    struct rt_task *next;
    sim_task what;
    bool control;
    uint64_t ticket;
} rt_task;

typedef struct rt_list {
    rt_task *first, *last;
} rt_list;

/* What the report keeps of a stream, also after its end. */
typedef struct rt_clock {
    struct rt_clock *next;
    int device;
    long stream, tasks;
    double busy, now; /* seconds of work; the same with waits for other streams */
    double bytes;     /* that tasks read and wrote */
} rt_clock;

typedef struct rt_context {
    aclrtContext handle;
    int device;
    bool main;              /* of aclrtSetDevice */
    bool stops;             /* STOP_ON_FAILURE */
    int stopped;            /* the code that stopped it */
    struct rt_stream *stream; /* the default one */
} rt_context;

/* A recording of tasks; an executable model once its capture has ended. */
typedef struct rt_model {
    aclmdlRI handle;
    int refs;
    rt_list tasks;
    aclmdlRICaptureMode mode;
    pthread_t thread;
    bool open, busy;        /* being captured; being run */
    int broken;             /* code of the first violation */
} rt_model;

typedef struct rt_stream {
    aclrtStream handle;
    rt_context *context;
    int device;
    int refs;               /* its handle, its worker, threads that wait */
    bool started, closing, abort;
    bool busy;
    rt_list queue;
    uint64_t submitted, done;
    uint64_t wanted;        /* the first ticket that a thread waits for */
    pthread_cond_t work;
    int fault;              /* not yet told */
    char message[RT_TEXT];
    rt_model *capture;
    bool origin;            /* of the capture; others joined it by an event */
    bool loose;             /* joined, and the origin has not waited for its last task */
    bool subscribed;
    pthread_t subscriber;
    rt_clock *clock;
} rt_stream;

/* Memory that the runtime gave out, or an address range that it mapped. */
typedef enum { RT_DEVICE_MEMORY, RT_PINNED, RT_MAPPED } rt_memory;

typedef struct rt_region {
    char *at;               /* as the caller knows it */
    char *work;             /* where workers and copies reach it */
    size_t size, charge;
    rt_memory kind;
    int device;
    char *map;              /* what to give back to the system: seen by the host, */
    size_t map_size;
    char *work_map;         /* and by workers, where that is another (else NULL) */
} rt_region;

typedef struct rt_device {
    int uses;               /* SetDevice less ResetDevice */
    rt_context *main;
    size_t used;            /* bytes */
    uint32_t peers;         /* bit per device whose memory it may reach */
    int pending;            /* tasks that have not ended */
} rt_device;

typedef struct rt_state {
    pthread_mutex_t lock;
    pthread_mutex_t inner;  /* of counters and faults; taken last, with the lock or without */
    pthread_cond_t changed; /* a task ended, a stream ended, a callback waits */
    int inits;
    bool finalized, forked, rc;
    int device_count;
    rt_device devices[RT_DEVICES];
    long streams, events;   /* that hold a resource */
    int running;            /* tasks and copies */
    int quiet;              /* threads that wait until nothing runs */
    double launch, bandwidth, flops; /* the virtual clock's */
} rt_state;

extern rt_state rt;

static inline char rt_enter(void)
{
    pthread_mutex_lock(&rt.lock);
    return 0;
}

static inline void rt_leave(const char *held)
{
    (void)held;
    pthread_mutex_unlock(&rt.lock);
}

/* Holds the lock to the end of the block. */
#define RT_HOLD __attribute__((cleanup(rt_leave), unused)) char rt_held = rt_enter()

/* errors.c: fails because a thing named so is NULL. */
#define RT_NEEDS(pointer) \
    do { \
        if (!(pointer)) \
            return sim_fail(ACL_ERROR_INVALID_PARAM, "%s: %s is NULL", __func__, #pointer); \
    } while (0)

/* handles.c; the lock is held. */
void *rt_handle(enum rt_kind kind, void *thing);
void *rt_thing(enum rt_kind kind, const void *handle);
void rt_handle_end(const void *handle);
/* The next living thing of a kind; *place begins at 0. */
void *rt_next(enum rt_kind kind, size_t *place);

/* chip.c */
void rt_faults(const char *text);
int rt_chip_load(void);
double rt_chip_number(const char *key, double otherwise);
bool rt_chip_says(const char *key, const char *value);

/* device.c; the lock is held. */
int rt_started(void);                     /* 0, or aclInit is missing */
int rt_here(rt_context **context);        /* the thread's */
int rt_ready(void);                       /* the same, if only the code matters */
int rt_device_known(int device);
void rt_device_close(int device);

/* stream.c, worker.c; the lock is held. */
int rt_stream_new(rt_context *context, rt_stream **out);
int rt_stream_of(aclrtStream handle, rt_stream **out); /* of the thread's context */
void rt_stream_end(rt_stream *stream, bool force);
void rt_stream_drop(rt_stream *stream);   /* one reference less */
int rt_submit(rt_stream *stream, const sim_task *task, bool control);
int rt_wait(rt_stream *stream, uint64_t ticket, long ms); /* 0, or timeout, or abort */
struct timespec rt_after(long ms);
/* Something changed: true; the time is over: false. ms < 0: for ever. */
bool rt_changes(long ms, const struct timespec *end);
rt_task *rt_append(rt_list *list, const sim_task *task, bool control);
void rt_list_free(rt_list *list);         /* what is in it is dropped; the lock is let go */
/* Without the lock; `launched`: with the cost of a launch. */
void rt_perform(rt_stream *stream, const rt_task *task, bool launched);
rt_stream *rt_running_stream(void);       /* of the worker that asks */

/* memory.c; the lock is held. */
rt_region *rt_find(const void *at);       /* that an address lies in */
void *rt_reach(const void *at, size_t n); /* n bytes as workers see them; NULL: not so many */
int rt_charge(int device, size_t size);
bool rt_foreign(int device, const rt_region *region);
void rt_free_all(int device);
void rt_reap(void);
void rt_region_add(const rt_region *region);
void rt_region_remove(rt_region *region);
char *rt_map(size_t size, bool reachable);
void rt_memory_living(size_t *blocks, size_t *bytes);

/* capture.c; the lock is held. */
int rt_capture_forbids(const char *what); /* while a capture is open: calls that wait */
int rt_capture_breaks(rt_stream *stream, const char *what); /* not on a captured stream */
int rt_capture_join(rt_stream *stream, rt_model *model, rt_stream *from);
void rt_capture_leave(rt_stream *stream); /* which ends */
int rt_capture_record(rt_stream *stream, const sim_task *task, bool control);

/* report.c; the lock is held. */
rt_clock *rt_clock_new(int device, long stream);

#endif
