/* Begin and end of the runtime, and what it says of itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rt.h"

rt_state rt = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .inner = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
};

static uint64_t configured; /* what the first aclInit was given */

/* Around a fork, so that the child's locks are free. */
static void hold(void)
{
    pthread_mutex_lock(&rt.lock);
    pthread_mutex_lock(&rt.inner);
}

static void let_go(void)
{
    pthread_mutex_unlock(&rt.inner);
    pthread_mutex_unlock(&rt.lock);
}

/* The child has none of the threads that run streams: everything is refused there. */
static void in_child(void)
{
    rt.forked = rt.inits > 0;
    let_go();
}

static void at_fork(void)
{
    pthread_atfork(hold, let_go, in_child);
}

/* A number for the content of a file. */
static int digest(const char *path, uint64_t *value)
{
    *value = 1469598103934665603u;
    if (!path || !*path)
        return 0;
    FILE *file = fopen(path, "r");
    if (!file)
        return sim_fail(ACL_ERROR_INVALID_FILE, "aclInit: %s cannot be read", path);
    for (int c = getc(file); c != EOF; c = getc(file))
        *value = (*value ^ (uint64_t)c) * 1099511628211u;
    fclose(file);
    return 0;
}

static void set_up(void)
{
    const char *form = getenv("UMBEL_CANN_SIMULATOR_FORM");
    rt.rc = form && *form ? !strcmp(form, "RC") : rt_chip_says("form", "RC");
    rt.device_count = (int)rt_chip_number("devices", 1);
    if (rt.device_count > RT_DEVICES)
        rt.device_count = RT_DEVICES;
    rt.launch = rt_chip_number("launch", 0);
    rt.bandwidth = rt_chip_number("bandwidth", 1e9);
    rt.flops = rt_chip_number("flops", 1e9);
    rt.finalized = false;
}

aclError aclInit(const char *config)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint64_t given;
    int code = rt_chip_load();
    pthread_once(&once, at_fork);
    RT_HOLD;
    if (rt.forked)
        return sim_fail(ACL_ERROR_RT_DRV_INTERNAL_ERROR, "aclInit in a forked child");
    if (code || (code = digest(config, &given)))
        return code;
    if (rt.inits && given != configured)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "aclInit: another configuration is in use");
    configured = given;
    if (rt.inits++)
        return sim_fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit: was called before");
    set_up();
    return ACL_SUCCESS;
}

aclError aclFinalize(void)
{
    RT_HOLD;
    if (rt.finalized)
        return sim_fail(ACL_ERROR_REPEAT_FINALIZE, "aclFinalize: was called before");
    int code = rt_started();
    if (code)
        return code;
    for (int i = 0; i < rt.device_count; i++)
        rt_device_close(i);
    rt.inits = 0;
    rt.finalized = true;
    return ACL_SUCCESS;
}

int rt_started(void)
{
    if (rt.forked)
        return sim_fail(ACL_ERROR_RT_DRV_INTERNAL_ERROR, "no device in a forked child");
    return rt.inits ? 0 : sim_fail(ACL_ERROR_UNINITIALIZE, "aclInit was not called");
}

aclError aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch)
{
    RT_NEEDS(major && minor && patch);
    *major = 1;
    *minor = 13;
    *patch = 0;
    return ACL_SUCCESS;
}

const char *aclrtGetSocName(void)
{
    return sim_chip("name");
}

/* The parts of "8.3.RC2" or "8.1". */
aclError aclsysGetCANNVersion(aclCANNPackageName name, aclCANNPackageVersion *version)
{
    const char *text = sim_chip("cann");
    RT_NEEDS(version);
    if ((unsigned)name > ACL_PKG_NAME_DRIVER)
        return sim_fail(ACL_ERROR_INVALID_PARAM, "there is no package %d", (int)name);
    memset(version, 0, sizeof *version);
    if (text) {
        snprintf(version->version, sizeof version->version, "%s", text);
        sscanf(text, "%63[0-9].%63[0-9].%63[^.].%63s", version->major, version->minor,
               version->release, version->patch);
    }
    return ACL_SUCCESS;
}
