/* What the runtime (libascendcl) offers to the other two libraries. */
#ifndef SIM_H
#define SIM_H

#include "acl.h"

enum { SIM_OK = 0 };

/* Notes the message for aclGetRecentErrMsg of this thread, and the code as its last error;
 * returns the code. */
ACL_API int sim_fail(int code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* 0, or the code of: not initialised, no context on this thread. */
ACL_API int sim_ready(void);

/* Where the device's workers reach n bytes of device memory; NULL: not (or no longer) device
 * memory, or of another device. Valid to the end of the task whose run() asks, even if the
 * memory is freed meanwhile. */
ACL_API void *sim_at(const void *device, size_t n);

typedef struct {
    const char *name;        /* of static storage */
    void (*run)(void *arg);  /* on a worker's thread */
    void (*drop)(void *arg); /* NULL: nothing to drop */
    void *arg;
    double flops, bytes;     /* for the virtual clock */
} sim_task;

/* Queues a task, or records it while the stream is captured: run() may then come many times,
 * or never. drop() comes once, at the end, also when the task is refused. */
ACL_API int sim_submit(aclrtStream stream, const sim_task *task);

/* From within run(): the stream's error, seen at its next synchronise. */
ACL_API void sim_task_fault(int code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The value of `key` in the chip's file, or NULL. A key may be of several words ("op Mm"). */
ACL_API const char *sim_chip(const char *key);

/* The number in UMBEL_CANN_FAULT's entry `name`; -1: there is none. */
ACL_API long sim_fault(const char *name);

/* Whether UMBEL_CANN_FAULT has the entry name=value; a name may come several times. */
ACL_API int sim_fault_is(const char *name, const char *value);

/* Counters, printed at exit into the file named by UMBEL_CANN_SIMULATOR_REPORT. What is alive
 * is counted up and down; `what` is of static storage. */
ACL_API void sim_count(const char *what, long by);

#endif
