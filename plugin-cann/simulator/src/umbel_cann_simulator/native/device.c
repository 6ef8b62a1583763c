/* Devices and contexts. The current context is of the thread; a new thread has none. */
#include <stdlib.h>
#include <string.h>

#include "rt.h"

static __thread aclrtContext current;

int rt_here(rt_context **context)
{
    int code = rt_started();
    if (code)
        return code;
    *context = rt_thing(RT_CONTEXT, current);
    if (*context)
        return 0;
    return sim_fail(ACL_ERROR_RT_CONTEXT_NULL, "ctx is NULL: this thread has none");
}

int rt_ready(void)
{
    rt_context *context;
    return rt_here(&context);
}

int sim_ready(void)
{
    RT_HOLD;
    return rt_ready();
}

int rt_device_known(int device)
{
    int code = rt_started();
    if (code || (device >= 0 && device < rt.device_count))
        return code;
    return sim_fail(ACL_ERROR_RT_INVALID_DEVICEID, "device %d of %d", device, rt.device_count);
}

static int context_new(int device, rt_context **out)
{
    rt_context *context = calloc(1, sizeof *context);
    if (!context)
        abort();
    context->device = device;
    context->handle = rt_handle(RT_CONTEXT, context);
    int code = rt_stream_new(context, &context->stream);
    if (code) {
        rt_handle_end(context->handle);
        free(context);
        return code;
    }
    *out = context;
    return 0;
}

/* With the streams in it; what they still had to do is given up. */
static void context_end(rt_context *context)
{
    size_t place = 0;
    rt_stream *stream;
    rt_handle_end(context->handle);
    context->stream = NULL;
    while ((stream = rt_next(RT_STREAM, &place)))
        if (stream->context == context)
            rt_stream_end(stream, true);
    free(context);
}

/* The last use of a device is over: everything on it ends. */
void rt_device_close(int device)
{
    size_t place = 0;
    rt_context *context;
    while ((context = rt_next(RT_CONTEXT, &place)))
        if (context->device == device)
            context_end(context);
    rt.devices[device].main = NULL;
    rt.devices[device].uses = 0;
    rt_free_all(device);
    while (rt.devices[device].pending)
        pthread_cond_wait(&rt.changed, &rt.lock);
}

aclError aclrtSetDevice(int32_t device)
{
    RT_HOLD;
    int code = rt_device_known(device);
    if (code)
        return code;
    rt_device *d = &rt.devices[device];
    if (!d->main && (code = context_new(device, &d->main)))
        return code;
    d->main->main = true;
    d->uses++;
    current = d->main->handle;
    return ACL_SUCCESS;
}

static int reset(int device, bool force)
{
    int code = rt_device_known(device);
    if (code)
        return code;
    rt_device *d = &rt.devices[device];
    if (!d->uses)
        return sim_fail(ACL_ERROR_RT_INVALID_DEVICEID, "device %d was not set", device);
    if (force || !--d->uses)
        rt_device_close(device);
    return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t device)
{
    RT_HOLD;
    return reset(device, false);
}

aclError aclrtResetDeviceForce(int32_t device)
{
    RT_HOLD;
    return reset(device, true);
}

aclError aclrtGetDevice(int32_t *device)
{
    rt_context *context;
    RT_NEEDS(device);
    RT_HOLD;
    int code = rt_here(&context);
    if (!code)
        *device = context->device;
    return code;
}

aclError aclrtGetDeviceCount(uint32_t *count)
{
    RT_NEEDS(count);
    RT_HOLD;
    int code = rt_started();
    if (!code)
        *count = (uint32_t)rt.device_count;
    return code;
}

aclError aclrtGetRunMode(aclrtRunMode *mode)
{
    RT_NEEDS(mode);
    RT_HOLD;
    int code = rt_started();
    if (!code)
        *mode = rt.rc ? ACL_DEVICE : ACL_HOST;
    return code;
}

aclError aclGetDeviceCapability(uint32_t device, aclDeviceInfo what, int64_t *value)
{
    static const char *const keys[] = {"cores", "vectors", "l2"};
    RT_NEEDS(value);
    RT_HOLD;
    int code = rt_device_known((int)device);
    if (code)
        return code;
    if ((unsigned)what > ACL_DEVICE_INFO_L2_SIZE)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "there is no capability %d", (int)what);
    *value = (int64_t)rt_chip_number(keys[what], 0);
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceUtilizationRate(int32_t device, aclrtUtilizationInfo *info)
{
    size_t place = 0;
    rt_stream *stream;
    bool busy = false;
    RT_NEEDS(info);
    RT_HOLD;
    int code = rt_device_known(device);
    if (code)
        return code;
    if (info->ext)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtUtilizationInfo: ext is to be NULL");
    while ((stream = rt_next(RT_STREAM, &place)))
        busy |= stream->device == device && stream->busy;
    info->cube = info->vector = busy ? 100 : 0;
    info->aicpu = 0;
    info->memory = -1;
    return ACL_SUCCESS;
}

aclError aclrtCreateContext(aclrtContext *context, int32_t device)
{
    rt_context *made;
    RT_NEEDS(context);
    RT_HOLD;
    int code = rt_device_known(device);
    if (code || (code = context_new(device, &made)))
        return code;
    *context = current = made->handle;
    return ACL_SUCCESS;
}

aclError aclrtDestroyContext(aclrtContext context)
{
    RT_NEEDS(context);
    RT_HOLD;
    int code = rt_started();
    rt_context *found = rt_thing(RT_CONTEXT, context);
    if (code)
        return code;
    if (!found)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtDestroyContext: no such context");
    if (found->main)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "the default context stays");
    context_end(found);
    return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context)
{
    RT_NEEDS(context);
    RT_HOLD;
    int code = rt_started();
    if (code)
        return code;
    if (!rt_thing(RT_CONTEXT, context))
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtSetCurrentContext: no such context");
    current = context;
    return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext *context)
{
    rt_context *found;
    RT_NEEDS(context);
    RT_HOLD;
    int code = rt_here(&found);
    if (!code)
        *context = found->handle;
    return code;
}

aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer)
{
    RT_NEEDS(can);
    RT_HOLD;
    int code = rt_device_known(device);
    if (code || (code = rt_device_known(peer)))
        return code;
    if (device == peer)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "device %d is no peer of itself", device);
    *can = rt_chip_says("peers", "yes");
    return ACL_SUCCESS;
}

/* One way: the thread's device may reach the peer's memory, or no longer. */
static int peer_access(int peer, bool enable)
{
    rt_context *context;
    int code = rt_here(&context);
    if (code || (code = rt_device_known(peer)))
        return code;
    if (context->device == peer)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "device %d is no peer of itself", peer);
    if (!rt_chip_says("peers", "yes"))
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "this chip has no access to peers");
    uint32_t *peers = &rt.devices[context->device].peers, bit = 1u << peer;
    *peers = enable ? *peers | bit : *peers & ~bit;
    return ACL_SUCCESS;
}

aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags)
{
    RT_HOLD;
    if (flags)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "peer access has no flags %u", flags);
    return peer_access(peer, true);
}

aclError aclrtDeviceDisablePeerAccess(int32_t peer)
{
    RT_HOLD;
    return peer_access(peer, false);
}
