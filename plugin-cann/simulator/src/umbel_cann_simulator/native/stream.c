/* Streams: made, found, waited for, ended. */
#include <stdlib.h>
#include <string.h>

#include "rt.h"

int rt_stream_new(rt_context *context, rt_stream **out)
{
    static long numbers;
    long limit = (long)rt_chip_number("streams", 1024);
    if (rt.streams >= limit)
        return sim_fail(ACL_ERROR_RT_NO_STREAM_RESOURCE, "all %ld streams are in use", limit);
    rt_stream *stream = calloc(1, sizeof *stream);
    if (!stream || !(stream->clock = rt_clock_new(context->device, numbers)))
        abort();
    numbers++;
    rt.streams++;
    stream->context = context;
    stream->device = context->device;
    stream->refs = 1;
    stream->wanted = UINT64_MAX;
    pthread_cond_init(&stream->work, NULL);
    stream->handle = rt_handle(RT_STREAM, stream);
    *out = stream;
    return 0;
}

/* NULL is the default stream of the thread's context. */
int rt_stream_of(aclrtStream handle, rt_stream **out)
{
    rt_context *context;
    int code = rt_here(&context);
    if (code)
        return code;
    *out = handle ? rt_thing(RT_STREAM, handle) : context->stream;
    if (!*out)
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is no stream (or no longer)", handle);
    if ((*out)->context != context)
        return sim_fail(ACL_ERROR_RT_STREAM_CONTEXT, "a stream of another context");
    return 0;
}

void rt_stream_drop(rt_stream *stream)
{
    if (--stream->refs)
        return;
    pthread_cond_destroy(&stream->work);
    free(stream);
}

/* By force: what is queued is dropped, and what waits for it, freed. */
void rt_stream_end(rt_stream *stream, bool force)
{
    rt_handle_end(stream->handle);
    rt.streams--;
    stream->context = NULL;
    stream->closing = true;
    stream->abort |= force;
    if (stream->capture)
        rt_capture_leave(stream);
    pthread_cond_broadcast(&stream->work);
    pthread_cond_broadcast(&rt.changed);
    rt_stream_drop(stream);
}

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)
{
    rt_context *context;
    rt_stream *made;
    (void)priority;
    RT_NEEDS(stream);
    RT_HOLD;
    int code = rt_here(&context);
    if (code)
        return code;
    if (flag & ~0x3fu)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no stream flag %#x", flag);
    if (!(code = rt_stream_new(context, &made)))
        *stream = made->handle;
    return code;
}

aclError aclrtCreateStream(aclrtStream *stream)
{
    return aclrtCreateStreamWithConfig(stream, 0, 0);
}

/* What may be destroyed: no default stream, none while it is captured. */
static int own_stream(aclrtStream handle, rt_stream **stream)
{
    if (!handle)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "a default stream is not destroyed");
    int code = rt_stream_of(handle, stream);
    if (!code && *stream == (*stream)->context->stream)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "a default stream is not destroyed");
    if (!code && (*stream)->capture)
        return rt_capture_breaks(*stream, "aclrtDestroyStream");
    return code;
}

aclError aclrtDestroyStream(aclrtStream handle)
{
    rt_stream *stream = NULL;
    RT_HOLD;
    int code = own_stream(handle, &stream);
    if (code || (code = rt_wait(stream, stream->submitted, -1)))
        return code;
    if (rt_thing(RT_STREAM, handle))
        rt_stream_end(stream, false);
    return ACL_SUCCESS;
}

aclError aclrtDestroyStreamForce(aclrtStream handle)
{
    rt_stream *stream = NULL;
    RT_HOLD;
    int code = own_stream(handle, &stream);
    if (!code)
        rt_stream_end(stream, true);
    return code;
}

aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus *status)
{
    rt_stream *stream;
    RT_NEEDS(status);
    RT_HOLD;
    int code = rt_stream_of(handle, &stream);
    if (code)
        return code;
    if (stream->capture)
        return rt_capture_breaks(stream, "aclrtStreamQuery");
    *status = stream->done < stream->submitted ? ACL_STREAM_STATUS_NOT_READY
        : ACL_STREAM_STATUS_COMPLETE;
    return ACL_SUCCESS;
}

/* Tells a fault once; that of a context that stopped, each time. */
static int tell(rt_stream *stream)
{
    int code = stream->fault;
    if (code) {
        stream->fault = 0;
        return sim_fail(code, "%s", stream->message);
    }
    code = stream->context ? stream->context->stopped : 0;
    return code ? sim_fail(code, "this context stopped on a failure") : 0;
}

static int synchronise(rt_stream *stream, long ms)
{
    if (stream->capture)
        return rt_capture_breaks(stream, "synchronise");
    stream->refs++;
    int code = rt_wait(stream, stream->submitted, ms);
    if (!code)
        code = tell(stream);
    rt_stream_drop(stream);
    return code;
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream handle, int32_t ms)
{
    rt_stream *stream;
    RT_HOLD;
    int code = rt_stream_of(handle, &stream);
    if (code)
        return code;
    if (ms < -1)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "a timeout of %d ms", (int)ms);
    sim_count("synchronises", 1);
    return synchronise(stream, ms);
}

aclError aclrtSynchronizeStream(aclrtStream stream)
{
    return aclrtSynchronizeStreamWithTimeout(stream, -1);
}

/* All streams of the device, of whatever context. */
aclError aclrtSynchronizeDevice(void)
{
    rt_context *context;
    rt_stream *stream;
    size_t place = 0;
    RT_HOLD;
    int failed = 0, code = rt_here(&context);
    if (code)
        return code;
    int device = context->device;
    sim_count("synchronises", 1);
    while ((stream = rt_next(RT_STREAM, &place)))
        if (stream->device == device && (code = synchronise(stream, -1)) && !failed)
            failed = code;
    return failed;
}

aclError aclrtSetStreamFailureMode(aclrtStream handle, uint64_t mode)
{
    rt_stream *stream;
    RT_HOLD;
    int code = rt_stream_of(handle, &stream);
    if (code)
        return code;
    if (mode > ACL_STOP_ON_FAILURE)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no failure mode %d", (int)mode);
    if (stream->context->stops && mode == ACL_CONTINUE_ON_FAILURE)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "STOP_ON_FAILURE is not taken back");
    stream->context->stops |= mode == ACL_STOP_ON_FAILURE;
    return ACL_SUCCESS;
}
