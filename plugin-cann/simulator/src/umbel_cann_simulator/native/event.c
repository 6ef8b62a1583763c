/* Events. Their time is the virtual clock's of the stream that records them. In a capture they
 * only say which streams belong to it: a replay runs the tasks in the order of recording. */
#include <stdlib.h>

#include "rt.h"

typedef struct {
    aclrtEvent handle;
    int device, refs;       /* its handle, tasks that record it or wait for it */
    bool ex, times, waits;  /* by the flags: what it may be used for */
    bool counted, cleared;
    uint64_t recorded, done; /* how many records were asked for; the last that ran */
    int waiting;
    int fault;              /* of the stream, when it was recorded */
    double time;
    const rt_clock *clock;
    aclmdlRI captured;      /* the recording it was last put in */
    aclrtStream from;
} event;

typedef struct {
    event *of;
    uint64_t ticket;
} mark;

static void release(event *e)
{
    if (!--e->refs)
        free(e);
}

static int create(aclrtEvent *out, bool plain, uint32_t flag, bool ex)
{
    rt_context *context;
    const uint32_t known = ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS
        | ACL_EVENT_TIME_LINE | ACL_EVENT_DEVICE_USE_ONLY | ACL_EVENT_EXTERNAL | ACL_EVENT_IPC;
    RT_NEEDS(out);
    RT_HOLD;
    int code = rt_here(&context);
    if (code)
        return code;
    if (!plain && (!flag || flag & ~known))
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there are no event flags %#x", flag);
    event *e = calloc(1, sizeof *e);
    if (!e)
        abort();
    e->device = context->device;
    e->refs = 1;
    e->ex = ex;
    e->times = plain || flag & ACL_EVENT_TIME_LINE;
    e->waits = plain || flag & ACL_EVENT_SYNC;
    *out = e->handle = rt_handle(RT_EVENT, e);
    return ACL_SUCCESS;
}

aclError aclrtCreateEvent(aclrtEvent *out)
{
    return create(out, true, 0, false);
}

aclError aclrtCreateEventWithFlag(aclrtEvent *out, uint32_t flag)
{
    return create(out, false, flag, false);
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *out, uint32_t flag)
{
    return create(out, false, flag, true);
}

static int event_of(aclrtEvent handle, event **out)
{
    int code = rt_ready();
    if (code)
        return code;
    if (!handle)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "the event is NULL");
    *out = rt_thing(RT_EVENT, handle);
    if (!*out)
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is no event (or no longer)", handle);
    return 0;
}

/* The host may not ask about an event whose record is in an open capture. */
static int free_event(aclrtEvent handle, event **out, const char *what)
{
    int code = event_of(handle, out);
    rt_model *model = code ? NULL : rt_thing(RT_MODEL, (*out)->captured);
    if (model && model->open)
        return sim_fail(ACL_ERROR_RT_EVENT_CAPTURED, "%s: the event is being captured", what);
    return code;
}

/* One whose state may be asked for in the older ways: no Ex event. */
static int plain_event(aclrtEvent handle, event **out, const char *what)
{
    int code = free_event(handle, out, what);
    if (!code && (*out)->ex)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%s: an Ex event", what);
    return code;
}

aclError aclrtDestroyEvent(aclrtEvent handle)
{
    event *e;
    RT_HOLD;
    int code = event_of(handle, &e);
    if (code)
        return code;
    rt.events -= e->counted;
    rt_handle_end(handle);
    release(e);
    return ACL_SUCCESS;
}

static bool complete(const event *e)
{
    return e->recorded && e->done >= e->recorded && !e->cleared;
}

static void finish(mark *m)
{
    if (m->of->done < m->ticket)
        m->of->done = m->ticket;
    pthread_cond_broadcast(&rt.changed);
}

static void run_record(void *arg)
{
    mark *m = arg;
    rt_stream *stream = rt_running_stream();
    RT_HOLD;
    m->of->cleared = false;
    m->of->time = stream->clock->now;
    m->of->clock = stream->clock;
    m->of->fault = stream->fault;
    finish(m);
}

static void drop_record(void *arg)
{
    mark *m = arg;
    RT_HOLD;
    finish(m); /* also if it never ran: nobody waits for it for ever */
    release(m->of);
    free(m);
}

static void run_wait(void *arg)
{
    mark *m = arg;
    rt_stream *stream = rt_running_stream();
    RT_HOLD;
    while (m->of->done < m->ticket && !stream->abort)
        pthread_cond_wait(&rt.changed, &rt.lock);
    if (stream->clock->now < m->of->time)
        stream->clock->now = m->of->time;
}

static void drop_wait(void *arg)
{
    mark *m = arg;
    RT_HOLD;
    m->of->waiting--;
    release(m->of);
    free(m);
}

static void run_clear(void *arg)
{
    mark *m = arg;
    RT_HOLD;
    m->of->cleared = true;
}

static void drop_clear(void *arg)
{
    mark *m = arg;
    RT_HOLD;
    release(m->of);
    free(m);
}

static int submit(rt_stream *stream, event *e, sim_task task)
{
    mark *m = malloc(sizeof *m);
    if (!m)
        abort();
    *m = (mark){e, e->recorded};
    task.arg = m;
    int code = rt_submit(stream, &task, true);
    if (code)
        free(m);
    else
        e->refs++;
    return code;
}

/* Event and stream, which are to be of one device. */
static int both(aclrtEvent handle, aclrtStream stream_handle, event **e, rt_stream **stream)
{
    int code = event_of(handle, e);
    if (code || (code = rt_stream_of(stream_handle, stream)))
        return code;
    if ((*e)->device != (*stream)->device)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "event of device %d, stream of device %d",
                        (*e)->device, (*stream)->device);
    return 0;
}

static int take_resource(event *e)
{
    long limit = (long)rt_chip_number("events", 65536);
    if (e->counted)
        return 0;
    if (rt.events >= limit)
        return sim_fail(ACL_ERROR_RT_NO_EVENT_RESOURCE, "all %ld events are in use", limit);
    rt.events++;
    e->counted = true;
    return 0;
}

aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle)
{
    event *e;
    rt_stream *stream;
    RT_HOLD;
    int code = both(handle, stream_handle, &e, &stream);
    if (code || (code = take_resource(e)))
        return code;
    e->captured = stream->capture ? stream->capture->handle : NULL;
    e->from = stream->handle;
    if (stream->capture)
        return ACL_SUCCESS;
    e->recorded++;
    code = submit(stream, e, (sim_task){"record", run_record, drop_record, NULL, 0, 0});
    e->recorded -= code != 0;
    return code;
}

aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent handle)
{
    event *e;
    rt_stream *stream;
    RT_HOLD;
    int code = both(handle, stream_handle, &e, &stream);
    if (code)
        return code;
    if (!e->waits)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtStreamWaitEvent: made without SYNC");
    rt_model *model = rt_thing(RT_MODEL, e->captured);
    if (stream->capture || (model && model->open))
        return rt_capture_join(stream, model, rt_thing(RT_STREAM, e->from));
    if (!e->recorded)
        return ACL_SUCCESS;
    code = submit(stream, e, (sim_task){"wait", run_wait, drop_wait, NULL, 0, 0});
    e->waiting += !code;
    return code;
}

aclError aclrtResetEvent(aclrtEvent handle, aclrtStream stream_handle)
{
    event *e;
    rt_stream *stream;
    RT_HOLD;
    int code = both(handle, stream_handle, &e, &stream);
    if (code)
        return code;
    if (e->ex || !e->waits)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtResetEvent: Ex or without SYNC");
    if (stream->capture)
        return ACL_SUCCESS;
    return submit(stream, e, (sim_task){"reset", run_clear, drop_clear, NULL, 0, 0});
}

/* Fails with what went wrong in the stream before the record. */
aclError aclrtSynchronizeEvent(aclrtEvent handle)
{
    event *e;
    RT_HOLD;
    int code = free_event(handle, &e, "aclrtSynchronizeEvent");
    if (code)
        return code;
    sim_count("synchronises", 1);
    uint64_t ticket = e->recorded;
    e->refs++;
    while (e->done < ticket)
        pthread_cond_wait(&rt.changed, &rt.lock);
    code = e->fault;
    release(e);
    return code ? sim_fail(code, "a task failed before the event") : ACL_SUCCESS;
}

aclError aclrtQueryEvent(aclrtEvent handle, aclrtEventStatus *status)
{
    event *e;
    RT_NEEDS(status);
    RT_HOLD;
    int code = plain_event(handle, &e, "aclrtQueryEvent");
    if (code)
        return code;
    *status = complete(e) ? ACL_EVENT_STATUS_COMPLETE : ACL_EVENT_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus *status)
{
    event *e;
    RT_NEEDS(status);
    RT_HOLD;
    int code = free_event(handle, &e, "aclrtQueryEventStatus");
    if (code)
        return code;
    *status = complete(e) || (e->ex && !e->recorded) ? ACL_EVENT_RECORDED_STATUS_COMPLETE
        : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    return ACL_SUCCESS;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent handle, aclrtEventWaitStatus *status)
{
    event *e;
    RT_NEEDS(status);
    RT_HOLD;
    int code = plain_event(handle, &e, "aclrtQueryEventWaitStatus");
    if (code)
        return code;
    *status = e->waiting ? ACL_EVENT_WAIT_STATUS_NOT_READY : ACL_EVENT_WAIT_STATUS_COMPLETE;
    return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float *ms, aclrtEvent start_handle, aclrtEvent end_handle)
{
    event *start, *end;
    RT_NEEDS(ms);
    RT_HOLD;
    int code = free_event(start_handle, &start, "aclrtEventElapsedTime");
    if (code || (code = free_event(end_handle, &end, "aclrtEventElapsedTime")))
        return code;
    if (!start->times || !end->times || !complete(start) || !complete(end)
        || start->clock != end->clock)
        return sim_fail(ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                        "both are to be made with TIME_LINE, recorded in one stream, and done");
    if (end->time < start->time)
        return sim_fail(ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, "the end lies before the start");
    *ms = (float)((end->time - start->time) * 1e3);
    return ACL_SUCCESS;
}
