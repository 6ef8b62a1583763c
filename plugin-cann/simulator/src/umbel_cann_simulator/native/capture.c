/* Capture: what is submitted to a stream is recorded and may be run again and again. A call
 * that would wait breaks the capture, and its end then says so. */
#include <stdlib.h>

#include "rt.h"

static int broken(rt_model *model, int code, const char *what)
{
    if (!model->broken)
        model->broken = code;
    return sim_fail(code, "%s: not while a stream is captured", what);
}

int rt_capture_breaks(rt_stream *stream, const char *what)
{
    return broken(stream->capture, ACL_ERROR_RT_STREAM_CAPTURED, what);
}

int rt_capture_forbids(const char *what)
{
    size_t place = 0;
    rt_model *model = NULL;
    while ((model = rt_next(RT_MODEL, &place)))
        if (model->open && (model->mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL
                            || (model->mode == ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL
                                && pthread_equal(model->thread, pthread_self()))))
            return broken(model, ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, what);
    return 0;
}

int rt_capture_record(rt_stream *stream, const sim_task *task, bool control)
{
    rt_append(&stream->capture->tasks, task, control);
    stream->loose = !stream->origin;
    return 0;
}

/* A stream waits for an event that stream `from` recorded in the capture of `model`. */
int rt_capture_join(rt_stream *stream, rt_model *model, rt_stream *from)
{
    if (!model || !model->open || !from || (stream->capture && stream->capture != model)) {
        rt_model *hurt = stream->capture ? stream->capture : model;
        return broken(hurt, ACL_ERROR_RT_CAPTURE_DEPENDENCY, "wait for an event from outside");
    }
    if (stream->capture) {
        from->loose = false;
        stream->loose = !stream->origin;
    } else {
        stream->capture = model;
        stream->origin = false;
        stream->loose = true;
    }
    return 0;
}

static void release(rt_model *model)
{
    if (--model->refs)
        return;
    rt_list_free(&model->tasks);
    free(model);
}

static void close_capture(rt_model *model)
{
    size_t place = 0;
    rt_stream *stream;
    while ((stream = rt_next(RT_STREAM, &place)))
        if (stream->capture == model) {
            stream->capture = NULL;
            stream->origin = stream->loose = false;
        }
    model->open = false;
}

static void destroy(rt_model *model)
{
    rt_handle_end(model->handle);
    release(model);
}

void rt_capture_leave(rt_stream *stream)
{
    rt_model *model = stream->capture;
    stream->capture = NULL;
    if (stream->origin) {
        close_capture(model);
        destroy(model);
    }
}

/* A stream, on a chip that can capture. */
static int capturing(aclrtStream handle, rt_stream **out)
{
    int code = rt_stream_of(handle, out);
    if (!code && rt_chip_says("capture", "no"))
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "this chip cannot capture");
    return code;
}

aclError aclmdlRICaptureBegin(aclrtStream handle, aclmdlRICaptureMode mode)
{
    rt_stream *stream;
    RT_HOLD;
    int code = capturing(handle, &stream);
    if (code)
        return code;
    if ((unsigned)mode > ACL_MODEL_RI_CAPTURE_MODE_RELAXED)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no capture mode %d", (int)mode);
    if (stream == stream->context->stream)
        return sim_fail(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "the default stream");
    if (stream->capture)
        return rt_capture_breaks(stream, "aclmdlRICaptureBegin");
    rt_model *model = calloc(1, sizeof *model);
    if (!model)
        abort();
    model->refs = 1;
    model->mode = mode;
    model->thread = pthread_self();
    model->open = stream->origin = true;
    model->handle = rt_handle(RT_MODEL, model);
    stream->capture = model;
    return ACL_SUCCESS;
}

/* The code of what makes a capture worthless. */
static int flaw(rt_model *model)
{
    size_t place = 0;
    rt_stream *stream;
    while ((stream = rt_next(RT_STREAM, &place)))
        if (stream->capture == model && stream->loose)
            return sim_fail(ACL_ERROR_RT_STREAM_UNJOINED, "a stream did not join again");
    if (model->broken)
        sim_fail(model->broken, "the capture was broken by an earlier call");
    return model->broken;
}

aclError aclmdlRICaptureEnd(aclrtStream handle, aclmdlRI *out)
{
    rt_stream *stream;
    RT_NEEDS(out);
    RT_HOLD;
    int code = rt_stream_of(handle, &stream);
    if (code)
        return code;
    if (!stream->capture || !stream->origin)
        return sim_fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "no capture began on this stream");
    rt_model *model = stream->capture;
    code = flaw(model);
    close_capture(model);
    *out = code ? NULL : model->handle;
    if (code)
        destroy(model);
    return code;
}

aclError aclmdlRICaptureGetInfo(aclrtStream handle, aclmdlRICaptureStatus *status,
                                aclmdlRI *out)
{
    rt_stream *stream;
    RT_NEEDS(status);
    RT_HOLD;
    int code = capturing(handle, &stream);
    if (code)
        return code;
    *status = !stream->capture ? ACL_MODEL_RI_CAPTURE_STATUS_NONE
        : stream->capture->broken ? ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED
        : ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
    if (out)
        *out = stream->capture ? stream->capture->handle : NULL;
    return ACL_SUCCESS;
}

/* All tasks for the launch of one. Two runs of a model follow each other. */
static void run_model(void *arg)
{
    rt_model *model = arg;
    rt_stream *stream = rt_running_stream();
    bool first = true, stopped;
    RT_HOLD;
    while (model->busy && !stream->abort)
        pthread_cond_wait(&rt.changed, &rt.lock);
    model->busy = true;
    for (rt_task *task = model->tasks.first; task; task = task->next) {
        stopped = stream->abort || (stream->context && stream->context->stopped);
        if (stopped)
            break;
        pthread_mutex_unlock(&rt.lock);
        rt_perform(stream, task, first);
        pthread_mutex_lock(&rt.lock);
        first = false;
    }
    model->busy = false;
    pthread_cond_broadcast(&rt.changed);
}

static void drop_model(void *arg)
{
    RT_HOLD;
    release(arg);
}

static int model_of(aclmdlRI handle, rt_model **model)
{
    if (!handle)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "the model is NULL");
    *model = rt_thing(RT_MODEL, handle);
    if (!*model)
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is no model (or no longer)", handle);
    if ((*model)->open)
        return sim_fail(ACL_ERROR_RT_MODEL_CAPTURED, "the model is being captured");
    return 0;
}

aclError aclmdlRIExecuteAsync(aclmdlRI handle, aclrtStream stream_handle)
{
    rt_stream *stream;
    rt_model *model = NULL;
    RT_HOLD;
    int code = rt_stream_of(stream_handle, &stream);
    if (code || (code = model_of(handle, &model)))
        return code;
    if (stream->capture)
        return rt_capture_breaks(stream, "aclmdlRIExecuteAsync");
    if ((code = stream->context->stopped))
        return sim_fail(code, "aclmdlRIExecuteAsync: this context stopped on a failure");
    code = rt_submit(stream, &(sim_task){"model", run_model, drop_model, model, 0, 0}, true);
    if (!code) {
        model->refs++;
        sim_count("replays", 1);
    }
    return code;
}

aclError aclmdlRIDestroy(aclmdlRI handle)
{
    rt_model *model = NULL;
    RT_HOLD;
    int code = rt_ready();
    if (!code && !(code = model_of(handle, &model)))
        destroy(model);
    return code;
}
