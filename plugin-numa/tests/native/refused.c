/* The functions of pages.h where the kernel's answer is refused ERRNO: refused ERRNO */
#include "pages.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int refuse(unsigned error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_move_pages, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
           || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int count, char **words)
{
    enum { BYTES = 1 << 22 };
    int64_t counts[2];
    if (count < 2 || refuse((unsigned)atoi(words[1])))
        return 1;
    char *memory = un_pages_alloc(BYTES, 1);
    memset(memory, 7, BYTES);
    printf("%d ", un_pages_bind(memory, BYTES, 0));
    printf("%d ", un_pages_move(memory, BYTES, 0));
    printf("%d ", un_pages_where(memory, BYTES, counts, 1));
    for (int i = 0; i < BYTES; i++)
        if (memory[i] != 7)
            return 1;
    printf("intact\n");
    return un_pages_free(memory, BYTES) != 0;
}
