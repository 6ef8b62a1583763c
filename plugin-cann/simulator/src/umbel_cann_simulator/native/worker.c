/* The thread of a stream, and how tasks come to it. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rt.h"

static __thread rt_stream *running; /* of a worker */
static atomic_long tasks_run;       /* for the faults task=N and hang=N */

rt_stream *rt_running_stream(void)
{
    return running;
}

/* Other faults from now on; tasks are counted anew. */
ACL_API void umbel_simulator_fault(const char *text);
void umbel_simulator_fault(const char *text)
{
    rt_faults(text);
    atomic_store(&tasks_run, 0);
}

rt_task *rt_append(rt_list *list, const sim_task *task, bool control)
{
    rt_task *made = malloc(sizeof *made);
    if (!made)
        abort();
    *made = (rt_task){.what = *task, .control = control};
    *(list->last ? &list->last->next : &list->first) = made;
    list->last = made;
    return made;
}

static void drop(const sim_task *task)
{
    if (task->drop)
        task->drop(task->arg);
}

void rt_list_free(rt_list *list)
{
    rt_task *next, *task = list->first;
    *list = (rt_list){0};
    pthread_mutex_unlock(&rt.lock);
    for (; task; task = next) {
        next = task->next;
        drop(&task->what);
        free(task);
    }
    pthread_mutex_lock(&rt.lock);
}

/* Notes the first fault; the next synchronise tells it. */
static void fault(rt_stream *stream, int code, const char *text)
{
    if (!stream->fault) {
        stream->fault = code;
        snprintf(stream->message, RT_TEXT, "%s", text);
    }
    if (stream->context && stream->context->stops && !stream->context->stopped)
        stream->context->stopped = code;
}

void sim_task_fault(int code, const char *format, ...)
{
    char text[RT_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    RT_HOLD;
    if (running)
        fault(running, code, text);
}

/* Never ends, but with the stream. */
static void hang(rt_stream *stream)
{
    RT_HOLD;
    while (!stream->abort)
        pthread_cond_wait(&stream->work, &rt.lock);
}

static void charge(rt_stream *stream, const sim_task *task, double launch)
{
    double bytes = task->bytes / rt.bandwidth, flops = task->flops / rt.flops;
    double seconds = launch + (bytes > flops ? bytes : flops);
    stream->clock->tasks++;
    stream->clock->busy += seconds;
    stream->clock->now += seconds;
    stream->clock->bytes += task->bytes;
}

void rt_perform(rt_stream *stream, const rt_task *task, bool launched)
{
    if (!task->control) {
        long number = atomic_fetch_add(&tasks_run, 1) + 1;
        pthread_mutex_lock(&rt.lock);
        charge(stream, &task->what, launched ? rt.launch : 0);
        pthread_mutex_unlock(&rt.lock);
        if (number == sim_fault("task")) {
            sim_task_fault(ACL_ERROR_RT_AICORE_EXCEPTION, "aicore exception in %s: task %ld",
                           task->what.name, number);
            return;
        }
        if (number == sim_fault("hang")) {
            hang(stream);
            return;
        }
    }
    task->what.run(task->what.arg);
}

/* The first of the queue; NULL: the stream ends. The lock is held. */
static rt_task *take(rt_stream *stream)
{
    while (!stream->queue.first && !stream->closing)
        pthread_cond_wait(&stream->work, &rt.lock);
    rt_task *task = stream->queue.first;
    if (task && !(stream->queue.first = task->next))
        stream->queue.last = NULL;
    return task;
}

static void count_running(rt_stream *stream, int by)
{
    stream->busy = by > 0;
    rt.running += by;
    rt_reap();
}

/* Only those whose wait may be over: a thread that woke for every task would cost much. */
static void tell_waiting(rt_stream *stream)
{
    bool last = !--rt.devices[stream->device].pending;
    if (!last && stream->done < stream->wanted && !(rt.quiet && !rt.running))
        return;
    stream->wanted = UINT64_MAX;
    pthread_cond_broadcast(&rt.changed);
}

static void *work(void *arg)
{
    rt_stream *stream = running = arg;
    rt_task *task;
    RT_HOLD;
    while ((task = take(stream))) {
        bool stopped = stream->abort || (stream->context && stream->context->stopped);
        count_running(stream, 1);
        pthread_mutex_unlock(&rt.lock);
        if (!stopped || (task->control && !stream->abort))
            rt_perform(stream, task, true);
        drop(&task->what);
        pthread_mutex_lock(&rt.lock);
        count_running(stream, -1);
        stream->done = task->ticket;
        free(task);
        tell_waiting(stream);
    }
    rt_stream_drop(stream);
    return NULL;
}

static int start(rt_stream *stream)
{
    pthread_t thread;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    stream->refs++;
    int failed = pthread_create(&thread, &detached, work, stream);
    pthread_attr_destroy(&detached);
    if (failed) {
        stream->refs--;
        return sim_fail(ACL_ERROR_RT_NO_STREAM_RESOURCE, "no thread: %s", strerror(failed));
    }
    stream->started = true;
    return 0;
}

/* On success the task belongs to the stream; else it is the caller's to drop. */
int rt_submit(rt_stream *stream, const sim_task *task, bool control)
{
    int stopped = stream->context->stopped;
    if (stopped && !control)
        return sim_fail(stopped, "%s: this context stopped on a failure", task->name);
    if (stream->capture)
        return rt_capture_record(stream, task, control);
    int code = stream->started ? 0 : start(stream);
    if (code)
        return code;
    rt_append(&stream->queue, task, control)->ticket = ++stream->submitted;
    rt.devices[stream->device].pending++;
    pthread_cond_signal(&stream->work);
    return 0;
}

int sim_submit(aclrtStream handle, const sim_task *task)
{
    rt_stream *stream;
    pthread_mutex_lock(&rt.lock);
    int code = rt_stream_of(handle, &stream);
    if (!code && !(code = rt_submit(stream, task, false)))
        sim_count("launches", 1);
    pthread_mutex_unlock(&rt.lock);
    if (code)
        drop(task);
    return code;
}

struct timespec rt_after(long ms)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += ms / 1000;
    end.tv_nsec += ms % 1000 * 1000000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    return end;
}

bool rt_changes(long ms, const struct timespec *end)
{
    return ETIMEDOUT != (ms < 0 ? pthread_cond_wait(&rt.changed, &rt.lock)
                         : pthread_cond_timedwait(&rt.changed, &rt.lock, end));
}

int rt_wait(rt_stream *stream, uint64_t ticket, long ms)
{
    struct timespec end = rt_after(ms);
    bool late = false;
    int code = 0;
    stream->refs++;
    while (stream->done < ticket && !stream->abort && !late) {
        if (ticket < stream->wanted)
            stream->wanted = ticket;
        late = !rt_changes(ms, &end);
    }
    if (stream->abort)
        code = sim_fail(ACL_ERROR_RT_STREAM_ABORT, "the stream was destroyed");
    else if (stream->done < ticket)
        code = sim_fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "a stream is busy after %ld ms", ms);
    rt_stream_drop(stream);
    return code;
}
