/* The barrier of native/barrier.c and the waiting of native/wait.h, for spin.
 *
 * check.py runs it for NODES x SIZE threads and two barriers one after the other, over every
 * interleaving, and asserts that
 *   - nobody passes before all have arrived, in a sense that holds on weakly ordered machines
 *     (below);
 *   - everybody passes: no deadlock, no wake-up lost between a thread that falls asleep and
 *     one that wakes it (a thread may stop spinning and go to sleep at any moment).
 *
 * Weak order. spin's own memory is sequentially consistent; C's is not. What C promises is
 * stated instead: a write is seen by a read only where it "happens before" it. Each thread
 * keeps the set of writes that happen before its next step (`mine`), one bit for what each
 * thread wrote before each barrier. A release puts the set of the thread into the word
 * (`view`), an acquire takes the word's set over; a relaxed operation does neither. A
 * read-modify-write leaves what others put there (C's release sequence). On leaving barrier k
 * the bits of ALL threads up to k must be in `mine`, although the interleaving has long
 * executed those writes: without them a processor may still hold them back.
 *
 * A load may also see an OLD value of its word. That is covered: a waiting load that does is a
 * thread that looks later; read-modify-writes and the kernel's comparison always see the
 * newest; the first load of a barrier sees no older one than the thread saw on leaving the
 * last.
 *
 * MUTANT=1..9 breaks one rule each; check.py wants every one of them to be caught.
 */
#ifndef NODES
#define NODES 2
#endif
#ifndef SIZE
#define SIZE 2
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#define ROUNDS 2
#define THREADS (NODES * SIZE)

#define STEP 2
#define ASLEEP 1

/* the words: where nodes meet, then each node's two */
#define MET 0
#define ARRIVED(n) (1 + 2 * (n))
#define RELEASED(n) (2 + 2 * (n))
#define WORDS (1 + 2 * NODES)

#define NOWHERE 255
byte value[WORDS];
short view[WORDS];
byte sleeps[THREADS] = NOWHERE; /* on which word, as the kernel sees it */

#define WROTE(k, t) (1 << ((k) * THREADS + (t)))
#define ALL_WROTE(k) ((1 << (((k) + 1) * THREADS)) - 1)

/* which word is not released by arriving at it */
#if MUTANT == 1
#define IS_RELEASE(w) ((w) == MET || (w) % 2 == 0)
#elif MUTANT == 2
#define IS_RELEASE(w) ((w) != MET)
#elif MUTANT == 3
#define IS_RELEASE(w) ((w) == MET || (w) % 2 == 1)
#else
#define IS_RELEASE(w) true
#endif

inline acquire(w)
{
#if MUTANT == 4
    skip
#else
    mine = mine | view[w]
#endif
}

/* an arrival is one operation: it acquires what was there and releases what the thread knows */
inline add(w)
{
    atomic {
        old = value[w];
        value[w] = old + STEP;
#if MUTANT != 5
        mine = mine | view[w];
#endif
        if
        :: IS_RELEASE(w) -> view[w] = view[w] | mine
        :: else
        fi
    }
}

inline clear(w)
{
    atomic { value[w] = value[w] & 254 }
}

inline wake_all(w)
{
    atomic {
        i = 0;
        do
        :: i < THREADS && sleeps[i] == w -> sleeps[i] = NOWHERE; i++
        :: i < THREADS && sleeps[i] != w -> i++
        :: i == THREADS -> i = 0; break
        od
    }
}

inline wake(w)
{
#if MUTANT == 8 /* the bit of one who slept after the call is lost */
    wake_all(w);
    clear(w)
#else
    clear(w);
    wake_all(w)
#endif
}

inline arrive(w, target)
{
    add(w);
    last = ((old & 254) + STEP == target);
    if
    :: last && (old & ASLEEP) -> wake(w)
    :: else
    fi;
    old = 0
}

/* futex: compares and sleeps at once */
inline nap(w)
{
    atomic {
        if
#if MUTANT == 7 /* what came since the last look is missed */
        :: true -> sleeps[me] = w
#else
        :: value[w] == (seen | ASLEEP) -> sleeps[me] = w
        :: else
#endif
        fi
    };
    sleeps[me] == NOWHERE
}

inline look(w)
{
    atomic { seen = value[w]; acquire(w) }
}

inline mark(w)
{
    atomic {
        if
        :: value[w] == seen ->
#if MUTANT != 6 /* nobody knows of the sleeper */
            value[w] = seen | ASLEEP;
#endif
            marked = true
        :: else -> seen = value[w]
        fi;
        acquire(w)
    }
}

inline sleep(w, target)
{
    look(w);
    do
    :: seen >= target -> break
    :: seen < target ->
        marked = (seen & ASLEEP);
        if
        :: !marked -> mark(w)
        :: else
        fi;
        if
        :: marked ->
#if MUTANT == 6
            atomic {
                if
                :: value[w] == seen -> sleeps[me] = w
                :: else
                fi
            };
            sleeps[me] == NOWHERE;
#else
            nap(w);
#endif
            look(w)
        :: else
        fi
    od;
    seen = 0;
    marked = false
}

inline await(w, target)
{
    if
    :: atomic { value[w] >= target -> acquire(w) } /* saw it while spinning */
    :: sleep(w, target)
    fi
}

inline barrier()
{
    next = (value[RELEASED(node)] & 254) + STEP;
    arrive(ARRIVED(node), next * SIZE);
    if
    :: !last -> await(RELEASED(node), next)
    :: last ->
        arrive(MET, next * NODES);
        if
#if MUTANT == 9 /* a node does not wait for the others */
        :: true
#else
        :: !last -> await(MET, next * NODES)
        :: else
#endif
        fi;
        arrive(RELEASED(node), next)
    fi;
    next = 0;
    last = false
}

proctype thread(byte me)
{
    byte node = me / SIZE;
    byte round, next, old, seen, i;
    bool last, marked;
    short mine;

    do
    :: round < ROUNDS ->
        mine = mine | WROTE(round, me);
        barrier();
        assert((mine & ALL_WROTE(round)) == ALL_WROTE(round));
        round++
    :: round == ROUNDS -> break
    od
}

init
{
    byte t;
    atomic {
        do
        :: t < THREADS -> run thread(t); t++
        :: t == THREADS -> break
        od
    }
}
