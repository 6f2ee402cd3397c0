/* Runs of items that wait, as a type for `_loops.c`: `speculation.hold` says what it is for, and its twin
 * `engine.loops.runs.PlainRuns` does the same.
 *
 * What is guaranteed: it holds a reference to each item from `add` to `take`, and compares nothing but numbers,
 * so no code but this runs meanwhile. What it cannot hold (a time that has more than 64 bits) it refuses as a
 * whole, and Python holds it instead.
 *
 * Items that wait are soon out of the processor's caches: an item is four objects, each in another place. So a
 * run keeps what an item consists of, in an array, and gives the item back to the memory that is in use just
 * then. `take` makes an equal one, of new memory. Neither to merge runs nor to take what is due touches any
 * object but that.
 */

#ifndef EMBERFLOW_RUNS_H
#define EMBERFLOW_RUNS_H

#include "arguments.h"
#include "sorting.h"

/* More runs than this are merged. `engine.loops.runs` has the same number. */
#define RUNS_MAX 24

/* So many child ids are kept in numbers. */
#define IDS_MAX 3

/* An item: its place in numbers, mark and payload. If it has more child ids, or larger ones, the item itself is
 * kept as the payload, and there is no mark. */
typedef struct {
    long long time, front;
    int32_t ids[IDS_MAX], count;
    PyObject *mark, *payload;
} Entry;

/* What waits is from `start` to `end`. */
typedef struct {
    Entry *entries;
    Py_ssize_t start, end, room;
} Run;

typedef struct {
    PyObject_HEAD
    Run runs[RUNS_MAX + 1];
    int count;
} Runs;

static inline Py_ssize_t
ids_of(const Entry *entry)
{
    return entry->mark != NULL ? entry->count : PyTuple_GET_SIZE(PLACE(entry->payload)) - 2;
}

static inline long long
id_of(const Entry *entry, Py_ssize_t i)
{
    return entry->mark != NULL ? entry->ids[i] : PyLong_AsLongLong(PyTuple_GET_ITEM(PLACE(entry->payload), i + 2));
}

static int
entry_ids_before(const void *one, const void *other)
{
    Py_ssize_t length = ids_of(one), others = ids_of(other), i;

    for (i = 0; i < length && i < others; i++) {
        long long a = id_of(one, i), b = id_of(other, i);
        if (a != b)
            return a < b;
    }
    return length < others;
}

static inline int
entry_is_before_entry(const Entry *one, const Entry *other)
{
    Sorted first = {one->time, one->front, one}, second = {other->time, other->front, other};
    return is_sorted_before(&first, &second, entry_ids_before);
}

/* Read an item that is no tombstone: whether it can be kept here. It holds no references yet. */
static inline int
read_entry(PyObject *item, Entry *entry)
{
    PyObject *place;
    long long id;
    Py_ssize_t i;

    if (!is_item(item) || is_tombstone(item) || moment_in(PLACE(item), &entry->time, &entry->front))
        return 0;
    place = PLACE(item);
    entry->count = (int32_t)(PyTuple_GET_SIZE(place) - 2);
    entry->mark = PyTuple_CheckExact(place) && PyTuple_GET_SIZE(place) - 2 <= IDS_MAX ? MARK(item) : NULL;
    for (i = 2; i < PyTuple_GET_SIZE(place); i++) {
        if (number_in(PyTuple_GET_ITEM(place, i), &id))
            return 0;
        if (id != (int32_t)id)
            entry->mark = NULL;
        else if (i - 2 < IDS_MAX)
            entry->ids[i - 2] = (int32_t)id;
    }
    entry->payload = entry->mark != NULL ? PAYLOAD(item) : item;
    return 1;
}

/* The item of an entry, a new reference; NULL with an exception. */
static PyObject *
entry_item(const Entry *entry)
{
    PyObject *place, *item, *number;
    Py_ssize_t i;

    if (entry->mark == NULL)
        return Py_NewRef(entry->payload);
    place = PyTuple_New(entry->count + 2);
    for (i = 0; place != NULL && i < PyTuple_GET_SIZE(place); i++) {
        number = PyLong_FromLongLong(i == 0 ? entry->time : i == 1 ? entry->front : entry->ids[i - 2]);
        if (number == NULL)
            Py_CLEAR(place);
        else
            PyTuple_SET_ITEM(place, i, number);
    }
    if (unseen(place) == NULL)
        return NULL;
    item = item_of(place, entry->mark, entry->payload);
    Py_DECREF(place);
    return item;
}

static inline void
forget_entries(Entry *entries, Py_ssize_t count)
{
    Py_ssize_t i;

    for (i = 0; i < count; i++) {
        Py_XDECREF(entries[i].mark);
        Py_DECREF(entries[i].payload);
    }
}

static inline Py_ssize_t
run_length(const Run *run)
{
    return run->end - run->start;
}

static inline int
is_moment_before(const Entry *one, long long time, long long front)
{
    return one->time < time || (one->time == time && one->front < front);
}

/* How many entries of a run are before a moment: mostly few, or all. */
static Py_ssize_t
run_before(const Run *run, long long time, long long front)
{
    Py_ssize_t low = run->start, high = run->end;

    if (low < high && is_moment_before(&run->entries[high - 1], time, front))
        return high - low;
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (is_moment_before(&run->entries[middle], time, front))
            low = middle + 1;
        else
            high = middle;
    }
    return low - run->start;
}

/* Make room for more entries at the end of a run; -1 with an exception. */
static int
make_room(Run *run, Py_ssize_t more)
{
    Py_ssize_t length = run_length(run), room;
    Entry *entries;

    if (run->end + more <= run->room)
        return 0;
    if (run->start >= length + more) { /* as much has left as would stay */
        memcpy(run->entries, run->entries + run->start, (size_t)length * sizeof(Entry));
        run->start = 0, run->end = length;
        return 0;
    }
    room = length + more + (length + more) / 2;
    entries = PyMem_Malloc((size_t)room * sizeof(Entry));
    if (entries == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (length)
        memcpy(entries, run->entries + run->start, (size_t)length * sizeof(Entry));
    PyMem_Free(run->entries);
    *run = (Run){entries, 0, length, room};
    return 0;
}

/* Drop the runs that are empty. */
static void
drop_empty(Runs *self)
{
    int i, kept = 0;

    for (i = 0; i < self->count; i++) {
        if (run_length(&self->runs[i]))
            self->runs[kept++] = self->runs[i];
        else
            PyMem_Free(self->runs[i].entries);
    }
    self->count = kept;
}

/* List the first entries of a run, to be sorted: where the list ends. */
static inline Sorted *
listed(const Run *run, Py_ssize_t count, Sorted *to)
{
    const Entry *entry = run->entries + run->start, *end = entry + count;

    for (; entry < end; entry++)
        *to++ = (Sorted){entry->time, entry->front, entry};
    return to;
}

/* Merge the shorter half of the runs; -1 with an exception. */
static int
merge_shorter(Runs *self)
{
    Run *runs = self->runs, merged = {NULL, 0, 0, 0};
    int half = self->count / 2, i, j;
    Py_ssize_t total = 0, k;
    Sorted *sorted, *to;

    for (i = 1; i < self->count; i++) { /* by length, stably */
        Run moved = runs[i];
        for (j = i; j && run_length(&moved) < run_length(&runs[j - 1]); j--)
            runs[j] = runs[j - 1];
        runs[j] = moved;
    }
    for (i = 0; i < half; i++)
        total += run_length(&runs[i]);
    sorted = PyMem_Malloc(2 * (size_t)total * sizeof(Sorted));
    if (sorted == NULL)
        PyErr_NoMemory();
    if (sorted == NULL || make_room(&merged, total)) {
        PyMem_Free(sorted);
        return -1;
    }
    for (i = 0, to = sorted; i < half; i++)
        to = listed(&runs[i], run_length(&runs[i]), to);
    sort_all(sorted, total, sorted + total, entry_ids_before);
    for (k = 0; k < total; k++)
        merged.entries[merged.end++] = *(const Entry *)sorted[k].what;
    PyMem_Free(sorted);
    for (i = 0; i < half; i++)
        PyMem_Free(runs[i].entries);
    runs[0] = merged;
    memmove(runs + 1, runs + half, (size_t)(self->count - half) * sizeof(Run));
    self->count -= half - 1;
    return 0;
}

/* The run that a first entry continues, which ends as late as possible; NULL if there is none. */
static Run *
continued_by(Runs *self, const Entry *first)
{
    Run *best = NULL;
    int i;

    for (i = 0; i < self->count; i++) {
        const Entry *last = &self->runs[i].entries[self->runs[i].end - 1];
        if (!entry_is_before_entry(first, last)
            && (best == NULL || entry_is_before_entry(&best->entries[best->end - 1], last)))
            best = &self->runs[i];
    }
    return best;
}

/* add(items) -> whether it could: items in order, none of them a tombstone */
static PyObject *
runs_add(PyObject *own, PyObject *items)
{
    Runs *self = (Runs *)own;
    Run *run;
    Py_ssize_t count, i;
    Entry *entries, first;

    if (!PyList_CheckExact(items)) {
        wrong_argument("add", 0, "items", "a list", items);
        return NULL;
    }
    count = PyList_GET_SIZE(items);
    if (!count)
        Py_RETURN_TRUE;
    if (!read_entry(PyList_GET_ITEM(items, 0), &first))
        Py_RETURN_FALSE;
    if (self->count > RUNS_MAX && merge_shorter(self)) /* the last one found no memory */
        return NULL;
    run = continued_by(self, &first);
    if (run == NULL)
        self->runs[self->count] = (Run){NULL, 0, 0, 0};
    if (make_room(run == NULL ? &self->runs[self->count] : run, count))
        return NULL;
    entries = run == NULL ? self->runs[self->count].entries : run->entries + run->end;
    for (i = 0; i < count; i++)
        if (!read_entry(PyList_GET_ITEM(items, i), &entries[i])
            || (i && entry_is_before_entry(&entries[i], &entries[i - 1]))) {
            if (run == NULL)
                PyMem_Free(entries);
            Py_RETURN_FALSE;
        }
    for (i = 0; i < count; i++) {
        Py_XINCREF(entries[i].mark);
        Py_INCREF(entries[i].payload);
    }
    if (run == NULL)
        run = &self->runs[self->count++];
    run->end += count;
    if (self->count > RUNS_MAX && merge_shorter(self))
        return NULL;
    Py_RETURN_TRUE;
}

/* take(moment) -> all items before it, in order */
static PyObject *
runs_take(PyObject *own, PyObject *moment)
{
    Runs *self = (Runs *)own;
    Py_ssize_t counts[RUNS_MAX + 1], total = 0, i;
    long long time, front;
    Sorted *sorted = NULL, *to;
    PyObject *taken;
    int run;

    if (moment_in(moment, &time, &front)) {
        wrong_argument("take", 0, "moment", "a global time", moment);
        return NULL;
    }
    for (run = 0; run < self->count; run++)
        total += counts[run] = run_before(&self->runs[run], time, front);
    taken = PyList_New(total);
    if (taken == NULL || !total)
        return taken;
    sorted = PyMem_Malloc(2 * (size_t)total * sizeof(Sorted));
    if (sorted == NULL) {
        Py_DECREF(taken);
        return PyErr_NoMemory();
    }
    for (run = 0, to = sorted; run < self->count; run++)
        to = listed(&self->runs[run], counts[run], to);
    sort_all(sorted, total, sorted + total, entry_ids_before);
    for (i = 0; i < total; i++) {
        PyObject *item = entry_item(sorted[i].what);
        if (item == NULL) {
            PyMem_Free(sorted);
            Py_DECREF(taken);
            return NULL;
        }
        PyList_SET_ITEM(taken, i, item);
    }
    PyMem_Free(sorted);
    for (run = 0; run < self->count; run++) {
        forget_entries(self->runs[run].entries + self->runs[run].start, counts[run]);
        self->runs[run].start += counts[run];
    }
    drop_empty(self);
    return taken;
}

static PyObject *
moment_of(const Entry *entry)
{
    return unseen(Py_BuildValue("(LL)", entry->time, entry->front));
}

/* least() -> the least global time, or None */
static PyObject *
runs_least(PyObject *own, PyObject *nothing)
{
    Runs *self = (Runs *)own;
    const Entry *least = NULL;
    int i;

    for (i = 0; i < self->count; i++) {
        const Entry *first = &self->runs[i].entries[self->runs[i].start];
        if (least == NULL || is_moment_before(first, least->time, least->front))
            least = first;
    }
    return least == NULL ? Py_NewRef(Py_None) : moment_of(least);
}

/* moments_after(moment, most) -> the least global times above it */
static PyObject *
runs_moments_after(PyObject *own, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {{"moment", A_MOMENT}, {"most", AN_INT}};
    Runs *self = (Runs *)own;
    long long time, front;
    Py_ssize_t at[RUNS_MAX + 1], most;
    PyObject *found;
    int i;

    if (CHECK_ARGUMENTS("moments_after", parameters))
        return NULL;
    most = natural_argument("moments_after", 1, "most", args[1]);
    if (most < 0)
        return NULL;
    if (moment_in(args[0], &time, &front)) {
        wrong_argument("moments_after", 0, "moment", "a global time", args[0]);
        return NULL;
    }
    for (i = 0; i < self->count; i++)
        at[i] = run_before(&self->runs[i], time, front);
    found = PyList_New(0);
    while (found != NULL && PyList_GET_SIZE(found) < most) {
        const Entry *next = NULL;
        for (i = 0; i < self->count; i++) {
            const Run *run = &self->runs[i];
            /* What has the time that was found last is passed over. */
            while (at[i] < run_length(run) && run->entries[run->start + at[i]].time == time
                   && run->entries[run->start + at[i]].front == front)
                at[i]++;
            if (at[i] < run_length(run)) {
                const Entry *entry = &run->entries[run->start + at[i]];
                if (next == NULL || is_moment_before(entry, next->time, next->front))
                    next = entry;
            }
        }
        if (next == NULL)
            break;
        time = next->time, front = next->front;
        if (append_made(found, moment_of(next)))
            Py_CLEAR(found);
    }
    return found;
}

/* items() -> all of them, run by run */
static PyObject *
runs_items(PyObject *own, PyObject *nothing)
{
    Runs *self = (Runs *)own;
    Py_ssize_t total = 0, next = 0, i;
    PyObject *items;
    int run;

    for (run = 0; run < self->count; run++)
        total += run_length(&self->runs[run]);
    items = PyList_New(total);
    for (run = 0; run < self->count; run++)
        for (i = self->runs[run].start; items != NULL && i < self->runs[run].end; i++)
            if (set_made(items, next++, entry_item(&self->runs[run].entries[i])))
                Py_CLEAR(items);
    return items;
}

static void
runs_dealloc(PyObject *own)
{
    Runs *self = (Runs *)own;
    PyTypeObject *type = Py_TYPE(own);
    int run;

    for (run = 0; run < self->count; run++) {
        forget_entries(self->runs[run].entries + self->runs[run].start, run_length(&self->runs[run]));
        PyMem_Free(self->runs[run].entries);
    }
    type->tp_free(own);
    Py_DECREF(type);
}

static PyMethodDef runs_methods[] = {
    {"add", runs_add, METH_O, NULL},
    {"take", runs_take, METH_O, NULL},
    {"least", runs_least, METH_NOARGS, NULL},
    {"moments_after", (PyCFunction)(void (*)(void))runs_moments_after, METH_FASTCALL, NULL},
    {"items", runs_items, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot runs_slots[] = {
    {Py_tp_doc, "Items that wait, in runs: see emberflow.engine.loops.runs."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, runs_dealloc},
    {Py_tp_methods, runs_methods},
    {0, NULL},
};

/* As with histories: no cycle goes through it. */
static PyType_Spec runs_spec = {
    .name = "emberflow.native._loops.Runs",
    .basicsize = sizeof(Runs),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = runs_slots,
};

/* Add the type to a module; -1 with an exception. */
static int
add_runs(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &runs_spec, NULL);
    int failed = type == NULL || PyModule_AddType(module, (PyTypeObject *)type);

    Py_XDECREF(type);
    return failed ? -1 : 0;
}

#endif
