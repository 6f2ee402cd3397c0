/* The buckets that a capture has still to look at, and those that it has seen, for `_loops.c`. The twins are in
 * `engine.cuts.noted`, which says what both guarantee.
 *
 * A cut of a million changed keys looks at a million addresses. Mostly the time goes into waiting for memory. So
 * a set of them is a table of plain numbers, and each loop fetches where it will look AT_ONCE.
 */

#ifndef EMBERFLOW_NOTED_H
#define EMBERFLOW_NOTED_H

#include "arguments.h"
#include "items.h"
#include <stdint.h>

/* In which set an address is: the greater of two of its digits. */
#define SETS 64
#define DIGIT_AT(address, shift) ((address) >> (shift) & (SETS - 1))
#define SLOTS_MIN 64
#define AT_ONCE 16

/* A set of addresses: an open table with a power of two slots, at most half of them full. No address is 0. */
typedef struct {
    PyObject_HEAD
    uintptr_t *slots;
    size_t room, used;
} Addresses;

static void
addresses_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyMem_Free(((Addresses *)self)->slots);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
addresses_length(PyObject *self)
{
    return (Py_ssize_t)((Addresses *)self)->used;
}

static PyType_Slot addresses_slots[] = {
    {Py_tp_doc, "Addresses of objects: see emberflow.engine.cuts.noted."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, addresses_dealloc},
    {Py_sq_length, addresses_length},
    {0, NULL},
};

static PyType_Spec addresses_spec = {
    .name = "emberflow.native._loops.Addresses",
    .basicsize = sizeof(Addresses),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = addresses_slots,
};

static inline Py_ssize_t
set_of(uintptr_t address)
{
    uintptr_t low = DIGIT_AT(address, 6), high = DIGIT_AT(address, 12);
    return (Py_ssize_t)(low > high ? low : high);
}

/* Where the search for an address begins. */
static inline size_t
slot_of(const Addresses *set, uintptr_t address)
{
    return (size_t)((uint64_t)address * 0x9E3779B97F4A7C15U >> 32) & (set->room - 1);
}

/* Make room for one more: 0, or -1 with an exception. */
static inline int
room_for_one(Addresses *set)
{
    Addresses grown = *set;
    size_t i;

    if (2 * (set->used + 1) <= set->room)
        return 0;
    grown.room = set->room ? 2 * set->room : SLOTS_MIN;
    grown.slots = PyMem_Calloc(grown.room, sizeof *grown.slots);
    if (grown.slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (i = 0; i < set->room; i++)
        if (set->slots[i]) {
            size_t at = slot_of(&grown, set->slots[i]);
            while (grown.slots[at])
                at = (at + 1) & (grown.room - 1);
            grown.slots[at] = set->slots[i];
        }
    PyMem_Free(set->slots);
    set->slots = grown.slots;
    set->room = grown.room;
    return 0;
}

/* Add an address: 1 if it was not there, 0 if it was, -1 with an exception. */
static inline int
add_address(Addresses *set, uintptr_t address)
{
    size_t at;

    if (room_for_one(set))
        return -1;
    for (at = slot_of(set, address); set->slots[at]; at = (at + 1) & (set->room - 1))
        if (set->slots[at] == address)
            return 0;
    set->slots[at] = address;
    set->used++;
    return 1;
}

/* The sets of an argument: 0, or -1 with an exception. */
static int
sets_argument(PyObject *given, PyTypeObject *type, Addresses **sets)
{
    Py_ssize_t i;

    if (PyList_GET_SIZE(given) != SETS) {
        PyErr_Format(PyExc_ValueError, "fresh: argument 2 (`sets`) must have %d sets, got %zd", SETS,
                     PyList_GET_SIZE(given));
        return -1;
    }
    for (i = 0; i < SETS; i++) {
        if (!Py_IS_TYPE(PyList_GET_ITEM(given, i), type)) {
            PyErr_Format(PyExc_TypeError, "fresh: argument 2 (`sets`) must hold sets of addresses at %zd, got %.100s",
                         i, Py_TYPE(PyList_GET_ITEM(given, i))->tp_name);
            return -1;
        }
        sets[i] = (Addresses *)PyList_GET_ITEM(given, i);
    }
    return 0;
}

/* Those of some objects that are in none of the sets. From now on they are. */
static PyObject *
fresh_of(PyObject *objects, Addresses *const *sets)
{
    PyObject *found = PyList_New(0);
    Py_ssize_t begin, i;

    for (begin = 0; found != NULL && begin < PyList_GET_SIZE(objects); begin += AT_ONCE) {
        Py_ssize_t end = Py_MIN(begin + AT_ONCE, PyList_GET_SIZE(objects));
        for (i = begin; i < end; i++) {
            uintptr_t address = (uintptr_t)PyList_GET_ITEM(objects, i);
            const Addresses *set = sets[set_of(address)];
            if (set->room)
                FETCH(&set->slots[slot_of(set, address)]);
        }
        for (i = begin; found != NULL && i < end; i++) {
            PyObject *object = PyList_GET_ITEM(objects, i);
            int is_new = add_address(sets[set_of((uintptr_t)object)], (uintptr_t)object);
            if (is_new < 0 || (is_new && PyList_Append(found, object)))
                Py_CLEAR(found);
        }
    }
    return found;
}

#endif
