// What the machine does just now, asked for by lines on stdin:
//
//     place T    one-way latency between two cores (ns), read bandwidth of T threads (GB/s)
//     limits T   the most that T threads do together: int8 and float32 products (G operations
//                a second), read bandwidth (GB/s)
//
// Each is answered by one line of numbers. The argument says how many MiB are read at once; with
// `spin` in its place it keeps one core busy.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { MOST = 1024, CHAINS = 12, TURNS = 10000, ROUNDS = 2000000 };
static int cpus[MOST], n_cpus;  // those that this process may use
static char *memory;
static int64_t n_bytes;  // of it
static _Atomic int64_t sink;  // so that no loop is left out
static _Alignas(128) atomic_int ball;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void find_cpus(void) {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    for (int i = 0; i < CPU_SETSIZE && n_cpus < MOST; i++) {
        if (CPU_ISSET(i, &set)) cpus[n_cpus++] = i;
    }
}

// A function on T threads, each on a core of its own; the seconds from first start to last end.
typedef struct {
    void (*work)(int id, int threads);
    int id, threads;
    pthread_barrier_t *start;
    double began, ended;
} Task;

static void *run_task(void *given) {
    Task *task = given;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[task->id % n_cpus], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    pthread_barrier_wait(task->start);
    task->began = now();
    task->work(task->id, task->threads);
    task->ended = now();
    return NULL;
}

static double together(int threads, void (*work)(int id, int threads)) {
    static Task tasks[MOST];
    static pthread_t ids[MOST];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        tasks[i] = (Task){work, i, threads, &start, 0, 0};
        if (pthread_create(&ids[i], NULL, run_task, &tasks[i])) exit(1);
    }
    double began = 1e300, ended = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        if (tasks[i].began < began) began = tasks[i].began;
        if (tasks[i].ended > ended) ended = tasks[i].ended;
    }
    pthread_barrier_destroy(&start);
    return ended - began;
}

// Two threads throw a cache line to each other.
static void play(int id, int threads) {
    (void)threads;
    for (int i = 0; i < TURNS; i++) {
        while (atomic_load_explicit(&ball, memory_order_acquire) != 2 * i + id) {}
        atomic_store_explicit(&ball, 2 * i + id + 1, memory_order_release);
    }
}

static void read_share(int id, int threads) {
    int64_t n = n_bytes / threads / 256 * 256;
    const uint64_t *at = (const uint64_t *)(memory + n * id);
    uint64_t sums[32] = {0};  // enough chains that the compiler can use wide registers
    for (int64_t i = 0; i < n / 8; i += 32) {
        for (int k = 0; k < 32; k++) sums[k] += at[i + k];
    }
    for (int k = 0; k < 32; k++) sink += (int64_t)sums[k];
}

// `DOT(sum)` adds products of bytes to a register of sums: DOT_OPS multiplications and
// additions each; FMA(sum) and FMA_OPS likewise in float32.
#if defined(__AVX512VNNI__)
#define INT __m512i
#define DOT(s) __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(s) : "v"(ones))
#define DOT_OPS 128
#elif defined(__AVXVNNI__)
#define INT __m256i
#define DOT(s) __asm__ volatile("%{vex%} vpdpbusd %1, %1, %0" : "+x"(s) : "x"(ones))
#define DOT_OPS 64
#elif defined(__AVX2__)
#define INT __m256i
#define DOT(s)                                                                              \
    do {                                                                                    \
        INT pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, ones), ones);              \
        s = _mm256_add_epi32(s, pairs);                                                     \
        __asm__ volatile("" : "+x"(s), "+x"(ones));                                         \
    } while (0)
#define DOT_OPS 64
#elif defined(__ARM_FEATURE_DOTPROD)
#define INT int32x4_t
#define DOT(s) __asm__ volatile("sdot %0.4s, %1.16b, %1.16b" : "+w"(s) : "w"(ones))
#define DOT_OPS 32
#else
#define INT int32_t
#define DOT(s)                                                                              \
    do {                                                                                    \
        s += (int8_t)ones * (int8_t)ones;                                                   \
        __asm__ volatile("" : "+r"(s), "+r"(ones));                                         \
    } while (0)
#define DOT_OPS 2
#endif

#if defined(__AVX512F__)
#define FLOAT __m512
#define FMA(s) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(s) : "v"(ones))
#define FMA_OPS 32
#elif defined(__FMA__)
#define FLOAT __m256
#define FMA(s) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+x"(s) : "x"(ones))
#define FMA_OPS 16
#elif defined(__aarch64__)
#define FLOAT float32x4_t
#define FMA(s) __asm__ volatile("fmla %0.4s, %1.4s, %1.4s" : "+w"(s) : "w"(ones))
#define FMA_OPS 8
#else
#define FLOAT float
#define FMA(s)                                                                              \
    do {                                                                                    \
        s += ones * ones;                                                                   \
        __asm__ volatile("" : "+m"(s));                                                     \
    } while (0)
#define FMA_OPS 2
#endif

static void multiply_bytes(int id, int threads) {
    (void)id, (void)threads;
    INT sums[CHAINS], ones;
    memset(sums, 0, sizeof sums);
    memset(&ones, 1, sizeof ones);
    for (int64_t i = 0; i < ROUNDS; i++) {
#pragma GCC unroll 12
        for (int k = 0; k < CHAINS; k++) DOT(sums[k]);
    }
    int32_t first;
    memcpy(&first, sums, sizeof first);
    sink += first;
}

static void multiply_floats(int id, int threads) {
    (void)id, (void)threads;
    FLOAT sums[CHAINS], ones;
    memset(sums, 0, sizeof sums);
    memset(&ones, 1, sizeof ones);  // tiny numbers, but normal ones
    for (int64_t i = 0; i < ROUNDS; i++) {
#pragma GCC unroll 12
        for (int k = 0; k < CHAINS; k++) FMA(sums[k]);
    }
    int32_t first;
    memcpy(&first, sums, sizeof first);
    sink += first;
}

// The shortest of some runs: whatever disturbs makes one longer.
static double shortest(int runs, int threads, void (*work)(int id, int threads)) {
    double best = 1e300;
    for (int i = 0; i < runs; i++) {
        atomic_store(&ball, 0);
        double seconds = together(threads, work);
        if (seconds < best) best = seconds;
    }
    return best;
}

static double bandwidth(int runs, int threads) {
    return (double)n_bytes / shortest(runs, threads, read_share) / 1e9;
}

int main(int argc, char **argv) {
    while (argc > 1 && !strcmp(argv[1], "spin")) sink++;
    if (argc < 2) return 2;
    n_bytes = (int64_t)atoi(argv[1]) << 20;
    find_cpus();
    memory = mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    madvise(memory, (size_t)n_bytes, MADV_HUGEPAGE);
    memset(memory, 1, (size_t)n_bytes);
    char what[16];
    int threads;
    while (scanf("%15s %d", what, &threads) == 2 && threads > 0 && threads <= MOST) {
        if (!strcmp(what, "place")) {
            // with one core there is nobody to throw to
            double turn = n_cpus > 1 ? shortest(3, 2, play) / (2 * TURNS) : 0;
            printf("%.1f %.2f\n", turn * 1e9, bandwidth(2, threads));
        } else {
            double work = (double)ROUNDS * CHAINS * threads / 1e9;
            printf("%.1f ", work * DOT_OPS / shortest(7, threads, multiply_bytes));
            printf("%.1f ", work * FMA_OPS / shortest(7, threads, multiply_floats));
            printf("%.2f\n", bandwidth(7, threads));
        }
        fflush(stdout);
    }
}
