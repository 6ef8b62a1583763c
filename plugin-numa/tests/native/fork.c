/* A pool that is used, forked while its threads sleep, and used on both sides; then freed. */
#include "pool.h"

#include <stdlib.h>
#include <sys/wait.h>

enum { THREADS = 4, ROUNDS = 200 };

static un_pool *pool;
static _Atomic int ran;

static void work(void *arg, int thread)
{
    for (int i = 0; i < *(int *)arg; i++) {
        ran++;
        un_pool_barrier(pool, thread);
    }
}

static void use(int threads)
{
    int rounds = ROUNDS;
    ran = 0;
    if (un_pool_run(pool, threads, work, &rounds) != 0 || ran != threads * ROUNDS)
        exit(1);
}

int main(void)
{
    int cpus[THREADS] = {-1, -1, -1, -1}, nodes[THREADS] = {0, 0, 1, 1};
    pool = un_pool_new(THREADS, cpus, nodes);
    use(THREADS);
    pid_t child = fork();
    alarm(30);  /* a child that hangs is an error, not a wait */
    if (child == 0 && fork() == 0) {  /* and one that never runs may free */
        un_pool_free(pool);
        exit(0);
    }
    use(3);
    use(THREADS);
    un_pool_free(pool);
    int status = 0;
    if (child > 0)
        waitpid(child, &status, 0);
    else
        wait(&status);
    return status != 0;
}
