/* Items in the order of their places, for `_loops.c`.
 *
 * What is guaranteed: a list comes out as `list.sort` with the place as key would leave it, items of one place
 * in the order they had. Places are tuples of ints, and no code but this runs while they are compared.
 *
 * A place lies two pointers away from the list, and Python's sort follows them at each comparison. Here the
 * global times are read once, and what is sorted is an array of numbers. Where the times are near each other
 * they are dealt out by their digits, and only things of one time are compared. Otherwise it is a merge sort,
 * which begins with short blocks and passes over halves that are in order already.
 */

#ifndef EMBERFLOW_SORTING_H
#define EMBERFLOW_SORTING_H

#include "items.h"

/* Blocks of so many are sorted by insertion. */
#define BLOCK 12
/* A digit, in bits, and how many there are. */
#define DIGIT_BITS 9
#define DIGITS ((Py_ssize_t)1 << DIGIT_BITS)
/* With fewer things than this, dealing out does not pay. */
#define DEALT_MIN 64
typedef struct {
    long long time, front;
    const void *what; /* what is sorted: mostly an item */
} Sorted;

/* Whether the child ids of one thing are before those of another of the same global time. */
typedef int (*IsBefore)(const void *one, const void *other);

/* Whether this is an item whose place can be compared here: a tuple of ints, the first two of 64 bits. */
static inline int
is_sortable(PyObject *item, Sorted *sorted)
{
    PyObject *place;
    Py_ssize_t i;

    if (!PyTuple_CheckExact(item) || !PyTuple_GET_SIZE(item)
        || moment_in(PLACE(item), &sorted->time, &sorted->front))
        return 0;
    place = PLACE(item);
    for (i = 2; i < PyTuple_GET_SIZE(place); i++)
        if (!PyLong_CheckExact(PyTuple_GET_ITEM(place, i)))
            return 0;
    sorted->what = item;
    return 1;
}

static int
item_is_before(const void *one, const void *other)
{
    PyObject *first = PLACE(one), *second = PLACE(other);
    Py_ssize_t length = PyTuple_GET_SIZE(first), others = PyTuple_GET_SIZE(second), i;

    for (i = 2; i < length && i < others; i++) {
        PyObject *a = PyTuple_GET_ITEM(first, i), *b = PyTuple_GET_ITEM(second, i);
        /* Ints compare without running anybody's code, and never fail. */
        if (a != b && PyObject_RichCompareBool(a, b, Py_NE) == 1)
            return PyObject_RichCompareBool(a, b, Py_LT) == 1;
    }
    return length < others;
}

static inline int
is_sorted_before(const Sorted *one, const Sorted *other, IsBefore is_before)
{
    if (one->time != other->time)
        return one->time < other->time;
    if (one->front != other->front)
        return one->front < other->front;
    return is_before(one->what, other->what);
}

/* Sort a block, stably. */
static inline void
insert_all(Sorted *block, Py_ssize_t count, IsBefore is_before)
{
    Py_ssize_t i, j;

    for (i = 1; i < count; i++) {
        Sorted moved = block[i];
        for (j = i; j && is_sorted_before(&moved, &block[j - 1], is_before); j--)
            block[j] = block[j - 1];
        block[j] = moved;
    }
}

/* Merge two parts that follow each other, stably; the first one is moved aside. */
static inline void
merge_parts(Sorted *from, Sorted *middle, Sorted *end, Sorted *aside, IsBefore is_before)
{
    Sorted *first = aside, *first_end, *second = middle, *to;

    /* What comes before all of the second part stays where it is. */
    while (from < middle && !is_sorted_before(middle, from, is_before))
        from++;
    to = from;
    memcpy(aside, from, (size_t)(middle - from) * sizeof(Sorted));
    first_end = aside + (middle - from);
    while (first < first_end && second < end)
        *to++ = is_sorted_before(second, first, is_before) ? *second++ : *first++;
    memcpy(to, first, (size_t)(first_end - first) * sizeof(Sorted));
}

static void
merge_sort(Sorted *sorted, Py_ssize_t count, Sorted *aside, IsBefore is_before)
{
    Py_ssize_t from, width;

    for (from = 0; from < count; from += BLOCK)
        insert_all(sorted + from, count - from < BLOCK ? count - from : BLOCK, is_before);
    for (width = BLOCK; width < count; width *= 2)
        for (from = 0; from + width < count; from += 2 * width) {
            Py_ssize_t end = count - from < 2 * width ? count : from + 2 * width;
            Sorted *middle = sorted + from + width;
            if (is_sorted_before(middle, middle - 1, is_before))
                merge_parts(sorted + from, middle, sorted + end, aside, is_before);
        }
}

/* Deal out by one digit of the time's distance from the least one, stably. */
static inline void
deal_out(const Sorted *from, Py_ssize_t count, long long least, int shift, Sorted *to)
{
    Py_ssize_t ends[1 << DIGIT_BITS] = {0}, i;

    for (i = 0; i < count; i++)
        ends[((unsigned long long)from[i].time - (unsigned long long)least) >> shift & (DIGITS - 1)]++;
    for (i = 1; i < DIGITS; i++)
        ends[i] += ends[i - 1];
    for (i = count; i--;)
        to[--ends[((unsigned long long)from[i].time - (unsigned long long)least) >> shift & (DIGITS - 1)]] = from[i];
}

/* Sort stably; `aside` has room for as many. */
static void
sort_all(Sorted *sorted, Py_ssize_t count, Sorted *aside, IsBefore is_before)
{
    long long least, most;
    unsigned long long range;
    Py_ssize_t i, from;

    if (count < DEALT_MIN) {
        merge_sort(sorted, count, aside, is_before);
        return;
    }
    least = most = sorted[0].time;
    for (i = 1; i < count; i++) {
        least = sorted[i].time < least ? sorted[i].time : least;
        most = sorted[i].time > most ? sorted[i].time : most;
    }
    range = (unsigned long long)most - (unsigned long long)least;
    if (range >= (unsigned long long)DIGITS * DIGITS) {
        merge_sort(sorted, count, aside, is_before);
        return;
    }
    deal_out(sorted, count, least, 0, aside);
    if (range < DIGITS)
        memcpy(sorted, aside, (size_t)count * sizeof(Sorted));
    else
        deal_out(aside, count, least, DIGIT_BITS, sorted);
    for (from = 0; from < count; from = i) {
        for (i = from + 1; i < count && sorted[i].time == sorted[from].time;)
            i++;
        if (i - from > 1)
            merge_sort(sorted + from, i - from, aside, is_before);
    }
}

/* How many items at the beginning of a list are in order; -1 without an exception if one of them cannot be
 * compared here. */
static inline Py_ssize_t
ordered_from_start(PyObject *items)
{
    Py_ssize_t count = PyList_GET_SIZE(items), i;
    Sorted before = {0, 0, NULL}, now;

    for (i = 0; i < count; i++) {
        if (!is_sortable(PyList_GET_ITEM(items, i), &now))
            return -1;
        if (i && is_sorted_before(&now, &before, item_is_before))
            return i;
        before = now;
    }
    return count;
}

/* Sort a list of items by place: 1; 0 if something in it cannot be compared here, and nothing was moved; -1
 * with an exception. */
static int
sort_items(PyObject *items)
{
    Py_ssize_t count = PyList_GET_SIZE(items), i = ordered_from_start(items);
    Sorted *sorted;

    if (i < 0 || i == count)
        return i == count;
    sorted = PyMem_Malloc(2 * (size_t)count * sizeof(Sorted));
    if (sorted == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (i = 0; i < count; i++) {
        if (!is_sortable(PyList_GET_ITEM(items, i), &sorted[i])) {
            PyMem_Free(sorted);
            return 0;
        }
    }
    sort_all(sorted, count, sorted + count, item_is_before);
    for (i = 0; i < count; i++)
        PyList_SET_ITEM(items, i, (PyObject *)sorted[i].what);
    PyMem_Free(sorted);
    return 1;
}

#endif
