/* Words that threads wait on: a counter that only grows, spun on first and then slept on.
 *
 * The counter stands in the upper 31 bits; bit 0 says that somebody sleeps. Both live in ONE
 * word, and it is changed by read-modify-writes only. So whoever brings the counter to its
 * target learns by the same operation whether to wake somebody: no second variable whose
 * order against the first would need a full fence. Acquire and release suffice. Targets are
 * compared modulo 2^32, so that the counter may wrap. model/barrier.pml checks all of it.
 */
#ifndef UN_WAIT_H
#define UN_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <pthread.h>
#endif

#ifndef UN_API
#define UN_API __attribute__((visibility("default")))
#endif

#define UN_LINE 128  /* two lines of 64 bytes are fetched together on x86; Apple's have 128 */
#define UN_STEP 2u   /* what one arrival adds: bit 0 is not the counter's */
#define UN_ASLEEP 1u

/* Bounds of how long a thread spins (ns) before it sleeps: the upper one is what a sleep and a
 * wake-up cost at worst. */
#ifndef UN_SPIN_MIN
#define UN_SPIN_MIN 1000
#endif
#ifndef UN_SPIN_MAX
#define UN_SPIN_MAX 50000
#endif
#define UN_SPIN_RETRY 128

/* What a thread learnt from its waits; zeros before the first. */
typedef struct {
    int64_t budget;  /* ns to spin */
    uint32_t sleeps;
} un_spin;

typedef struct {
    _Alignas(UN_LINE) _Atomic uint32_t value;
#ifdef UN_COUNT
    _Atomic int64_t arrivals;  /* read-modify-writes of those who arrive, */
    _Atomic int64_t naps;      /* and of those who fall asleep or wake them */
#endif
#ifndef __linux__
    pthread_mutex_t lock;
    pthread_cond_t changed;
#endif
} un_word;

#ifdef UN_COUNT
#define UN_TALLY(counter) atomic_fetch_add_explicit(&(counter), 1, memory_order_relaxed)
#else
#define UN_TALLY(counter) ((void)0)
#endif

static inline void un_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");  /* `yield` does nothing on most cores */
#endif
}

static inline int64_t un_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void un_word_init(un_word *word)
{
    atomic_init(&word->value, 0);
#ifdef UN_COUNT
    atomic_init(&word->arrivals, 0);
    atomic_init(&word->naps, 0);
#endif
#ifndef __linux__
    pthread_mutex_init(&word->lock, NULL);
    pthread_cond_init(&word->changed, NULL);
#endif
}

/* Sleeps unless the word is no longer `seen`; may return for no reason. */
static inline void un_word_nap(un_word *word, uint32_t seen)
{
#ifdef __linux__
    syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
#else
    pthread_mutex_lock(&word->lock);
    if (atomic_load_explicit(&word->value, memory_order_relaxed) == seen)
        pthread_cond_wait(&word->changed, &word->lock);
    pthread_mutex_unlock(&word->lock);
#endif
}

/* The bit goes before the call: who fell asleep until then is woken, who comes after sets it
 * again. */
static inline void un_word_wake(un_word *word)
{
    atomic_fetch_and_explicit(&word->value, ~UN_ASLEEP, memory_order_relaxed);
    UN_TALLY(word->naps);
#ifdef __linux__
    syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#else
    pthread_mutex_lock(&word->lock);
    pthread_cond_broadcast(&word->changed);
    pthread_mutex_unlock(&word->lock);
#endif
}

/* True for the one that brought the word to `target`; it also wakes the sleepers. */
static inline bool un_word_arrive(un_word *word, uint32_t target)
{
    uint32_t old = atomic_fetch_add_explicit(&word->value, UN_STEP, memory_order_acq_rel);
    UN_TALLY(word->arrivals);
    if ((old & ~UN_ASLEEP) + UN_STEP != target)
        return false;
    if (old & UN_ASLEEP)
        un_word_wake(word);
    return true;
}

static inline bool un_word_reached(un_word *word, uint32_t target)
{
    uint32_t value = atomic_load_explicit(&word->value, memory_order_acquire);
    return (int32_t)(value - target) >= 0;
}

static inline void un_word_sleep(un_word *word, uint32_t target)
{
    uint32_t seen = atomic_load_explicit(&word->value, memory_order_acquire);
    while ((int32_t)(seen - target) < 0) {
        bool marked = seen & UN_ASLEEP;
        if (!marked) {
            marked = atomic_compare_exchange_weak_explicit(
                &word->value, &seen, seen | UN_ASLEEP, memory_order_acquire,
                memory_order_acquire);
            UN_TALLY(word->naps);
        }
        if (marked) {
            un_word_nap(word, seen | UN_ASLEEP);
            seen = atomic_load_explicit(&word->value, memory_order_acquire);
        }
    }
}

static inline bool un_word_spin(un_word *word, uint32_t target, int pauses)
{
    for (int i = 0; i < pauses; i++) {
        if (un_word_reached(word, target))
            return true;
        un_pause();
    }
    return false;
}

/* Spins, then sleeps, until the word has come to `target`.
 *
 * Each spin in vain halves the next: where threads wait for one that has no processor, perhaps
 * because they spin on it, they soon sleep at once. One that nearly was in vain doubles it, and
 * now and then the longest is tried again, for those who competed may have gone. */
static inline void un_word_await(un_word *word, uint32_t target, un_spin *spin)
{
    if (un_word_spin(word, target, 32))  /* most waits are short: no clock */
        return;
    if (spin->budget == 0)
        spin->budget = UN_SPIN_MAX;
    int64_t start = un_now(), waited = 0;
    do {
        if (un_word_spin(word, target, 16)) {
            if (2 * waited >= spin->budget && 2 * spin->budget <= UN_SPIN_MAX)
                spin->budget *= 2;
            return;
        }
        waited = un_now() - start;
    } while (waited < spin->budget);
    un_word_sleep(word, target);
    if (++spin->sleeps % UN_SPIN_RETRY == 0)
        spin->budget = UN_SPIN_MAX;
    else if (spin->budget >= 2 * UN_SPIN_MIN)
        spin->budget /= 2;
}

#endif
