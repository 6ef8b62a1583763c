/* Handles: a slot and how often it was used. They point nowhere, so that a program that looks
 * into one ends at once. */
#include <stdlib.h>

#include "rt.h"

enum { SLOT_BITS = 20, FIRST_SHIFT = 4 };

typedef struct {
    void *thing; /* NULL: free */
    enum rt_kind kind;
    uint64_t uses;
} slot;

static slot *slots;
static size_t count, room;
static size_t *free_slots, free_count;

void *rt_handle(enum rt_kind kind, void *thing)
{
    size_t i;
    if (free_count) {
        i = free_slots[--free_count];
    } else {
        if (count >> SLOT_BITS)
            abort();
        if (count == room) {
            room = room ? 2 * room : 64;
            slots = realloc(slots, room * sizeof *slots);
            free_slots = realloc(free_slots, room * sizeof *free_slots);
            if (!slots || !free_slots)
                abort();
        }
        i = count++;
        slots[i].uses = 0;
    }
    slots[i].thing = thing;
    slots[i].kind = kind;
    slots[i].uses++;
    return (void *)(uintptr_t)((slots[i].uses << SLOT_BITS | i) << FIRST_SHIFT);
}

static slot *slot_of(const void *handle)
{
    uintptr_t value = (uintptr_t)handle >> FIRST_SHIFT;
    size_t i = value & ((1u << SLOT_BITS) - 1);
    if ((uintptr_t)handle & ((1u << FIRST_SHIFT) - 1) || i >= count)
        return NULL;
    return slots[i].thing && slots[i].uses == value >> SLOT_BITS ? &slots[i] : NULL;
}

void *rt_thing(enum rt_kind kind, const void *handle)
{
    slot *found = slot_of(handle);
    return found && found->kind == kind ? found->thing : NULL;
}

void rt_handle_end(const void *handle)
{
    slot *found = slot_of(handle);
    if (found) {
        found->thing = NULL;
        free_slots[free_count++] = (size_t)(found - slots);
    }
}

void *rt_next(enum rt_kind kind, size_t *place)
{
    while (*place < count) {
        slot *s = &slots[(*place)++];
        if (s->thing && s->kind == kind)
            return s->thing;
    }
    return NULL;
}
