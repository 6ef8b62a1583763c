/* Which kernels this processor can run, best first. The processor is asked at run time; what
 * the system does not save at a switch of threads (AVX-512 state) counts as absent. */
#include <string.h>

#include "un.h"

#ifndef UN_VARIANTS /* those that were compiled, the best first: X(name) ... */
#define UN_VARIANTS X(scalar)
#endif

#define X(name) extern const un_kernels un_kernels_##name;
UN_VARIANTS
#undef X
#define X(name) &un_kernels_##name,
const un_kernels *const un_variants[] = {UN_VARIANTS NULL};
#undef X

#if defined(__x86_64__)
#include <cpuid.h>

static int runs(const char *name)
{
    unsigned a, b, c, d, a1, b1, c1, d1;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 29 & 1)) /* F16C */
        return 0;
    if (!strcmp(name, "avx2"))
        return 1;
    if (!strcmp(name, "avxvnni"))
        return __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) && (a1 >> 4 & 1);
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static int runs(const char *name)
{
    unsigned long one = getauxval(AT_HWCAP), two = getauxval(AT_HWCAP2);
    int dotprod = (int)(one >> 20 & 1); /* HWCAP_ASIMDDP */
    return !strcmp(name, "dotprod") ? dotprod : dotprod && (two >> 13 & 1); /* HWCAP2_I8MM */
}
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>

static int told(const char *name)
{
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value;
}

static int runs(const char *name)
{
    int dotprod = told("hw.optional.arm.FEAT_DotProd");
    return !strcmp(name, "dotprod") ? dotprod : dotprod && told("hw.optional.arm.FEAT_I8MM");
}
#else
static int runs(const char *name)
{
    (void)name;
    return 0;
}
#endif

/* The name of set i of the library's kernels, the best first; NULL after the last. */
UN_API const char *un_variant_name(int i)
{
    return un_variants[i] ? un_variants[i]->name : NULL;
}

/* Whether the processor can run that set. */
UN_API int un_variant_runs(int i)
{
    return un_variants[i] == &un_kernels_scalar || runs(un_variants[i]->name);
}
