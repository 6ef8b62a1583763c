/* Messages and last errors: both belong to the thread in which a call failed. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rt.h"

enum { NOTES = 4096 };

static __thread char notes[NOTES], given[NOTES]; /* the newest first */
static __thread int last_error;

/* The class of an error as the vendor's messages name it, and what they say of it. */
static const char *number(int code)
{
    int family = code / 1000;
    return family == 100 || family == 107 ? "EE1001" : family == 161 ? "EZ1001"
        : family == 207 ? "EL0004" : "EZ9999";
}

static const char *summary(int code)
{
    return code < 200000 ? "The argument is invalid." : code < 300000
        ? "The resource cannot be given." : "Inner Error!";
}

/* Puts a message before those that are there; what no longer fits is the oldest. */
static void note(int code, const char *text)
{
    static __thread char older[NOTES];
    char date[32];
    time_t now = time(NULL);
    struct tm parts;
    strftime(date, sizeof date, "%Y-%m-%d-%H:%M:%S", localtime_r(&now, &parts));
    memcpy(older, notes, NOTES);
    snprintf(notes, NOTES,
             "%s: [PID: %d] %s %sReason: %.*s. Solution: Look up error %d.\n"
             "        TraceBack (most recent call last):\n        umbel-cann-simulator\n%.*s",
             number(code), (int)getpid(), date, summary(code), RT_TEXT, text, code, NOTES / 2,
             older);
}

int sim_fail(int code, const char *format, ...)
{
    char text[RT_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    note(code, text);
    last_error = code;
    return code;
}

const char *aclGetRecentErrMsg(void)
{
    if (!notes[0])
        return NULL;
    memcpy(given, notes, NOTES);
    notes[0] = 0;
    return given;
}

aclError aclrtPeekAtLastError(aclrtLastErrLevel level)
{
    if (level != ACL_RT_THREAD_LEVEL)
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no error level %d", (int)level);
    return last_error;
}

aclError aclrtGetLastError(aclrtLastErrLevel level)
{
    int code = aclrtPeekAtLastError(level);
    last_error = 0;
    return code;
}
