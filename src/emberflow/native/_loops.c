/* The hottest loops of the engine, compiled. `items.py` says what each is for, and does the same where
 * this module could not be built; tests/engine/test_items.py holds the two to each other.
 *
 * What is guaranteed: a loop either deals with an item exactly as `items.py` does, or leaves it untouched
 * and returns its position, and Python deals with it. So everything rare (a new key, an item out of order,
 * a function that raises) is written once, in Python. These loops drop an Exception of a user's function,
 * because Python calls the function again; anything else (KeyboardInterrupt) is passed on.
 *
 * A user's function may do anything but change the lists and dicts that a loop was given: they belong to
 * the engine, which shows them to nobody. So references borrowed from them stay good while it runs.
 */

#include "headers/history.h"
#include "headers/noted.h"
#include "headers/runs.h"

#define WORKERS_REMEMBERED 64

/* What the module was told, the type of the rows of a cut and that of what stands for a restored mapped
 * item; a name that it looks up often; and the type of histories that it made. Python's cache of attributes
 * goes by the object that is the name, so it has to be the same one each time. */
typedef struct {
    PyObject *row, *restored, *key;
    PyTypeObject *history_type, *addresses_type;
} Known;

static inline Known *
known_of(PyObject *module)
{
    return PyModule_GetState(module);
}

/* prepare(Row, Restored) */
static PyObject *
prepare(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {{"row", ANYTHING}, {"restored", A_TYPE}};
    PyObject *type;

    if (CHECK_ARGUMENTS("prepare", parameters))
        return NULL;
    type = row_argument(0, args[0]);
    if (type == NULL)
        return NULL;
    Py_XSETREF(known_of(module)->row, type);
    Py_XSETREF(known_of(module)->restored, Py_NewRef(args[1]));
    Py_RETURN_NONE;
}

/* Histories, as Python sees them: see `headers/history.h`. */

static inline const Known *
known_by(PyObject *history)
{
    return PyType_GetModuleState(Py_TYPE(history));
}

static inline int
is_history(const Known *known, PyObject *thing)
{
    return Py_IS_TYPE(thing, known->history_type);
}

/* History(key, version): of a key that is that of the version. */
static PyObject *
history_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "version", NULL};
    const Known *known = PyType_GetModuleState(type);
    PyObject *key, *version, *list;
    History *history;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!:History", names, &key, &PyTuple_Type, &version))
        return NULL;
    if (known == NULL || known->restored == NULL)
        return unprepared("History");
    list = PyList_New(1);
    if (list == NULL)
        return NULL;
    PyList_SET_ITEM(list, 0, Py_NewRef(version));
    history = (History *)type->tp_alloc(type, 0);
    if (history == NULL) {
        Py_DECREF(list);
        return NULL;
    }
    history->held = list;
    history->key = Py_NewRef(key);
    history->is_unknown = !is_plain(key);
    if (is_entry(version, VERSION_SIZE) && (PyObject *)Py_TYPE(MAPPED(version)) == known->restored
        && settle(history, Py_None, Py_None, known->restored, known->key)) {
        Py_DECREF(history);
        return NULL;
    }
    return (PyObject *)history;
}

static void
history_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    Py_CLEAR(((History *)self)->held);
    Py_CLEAR(((History *)self)->key);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
history_length(PyObject *self)
{
    return history_size((History *)self);
}

/* A list of nothing but versions, borrowed; NULL with an exception. */
static PyObject *
list_of(PyObject *self)
{
    return expanded((History *)self, known_by(self)->restored) ? NULL : ((History *)self)->held;
}

static PyObject *
history_item(PyObject *self, Py_ssize_t position)
{
    History *history = (History *)self;

    if (position < 0 || position >= history_size(history)) {
        PyErr_SetString(PyExc_IndexError, "history index out of range");
        return NULL;
    }
    if (history->is_short)
        return short_version(history, history->held, known_by(self)->restored);
    if (!position && history->has_short)
        return short_version(history, PyList_GET_ITEM(history->held, 0), known_by(self)->restored);
    return Py_NewRef(PyList_GET_ITEM(history->held, position));
}

static PyObject *
history_subscript(PyObject *self, PyObject *index)
{
    PyObject *list;

    if (PyLong_CheckExact(index)) {
        Py_ssize_t position = PyLong_AsSsize_t(index);
        if (position == -1 && PyErr_Occurred())
            return NULL;
        return history_item(self, position < 0 ? position + history_length(self) : position);
    }
    list = list_of(self);
    return list == NULL ? NULL : PyObject_GetItem(list, index);
}

/* Python may put a version of any key in, so what the keys look like is not known any more. */
static int
history_assign(PyObject *self, PyObject *index, PyObject *value)
{
    PyObject *list = list_of(self);

    if (list == NULL)
        return -1;
    if (value == NULL)
        return PyObject_DelItem(list, index);
    ((History *)self)->is_unknown = 1;
    return PyObject_SetItem(list, index, value);
}

static PyObject *
history_append_method(PyObject *self, PyObject *version)
{
    ((History *)self)->is_unknown = 1;
    if (history_append((History *)self, Py_NewRef(version)))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
history_insert(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {{"position", AN_INT}, {"version", A_TUPLE}};
    PyObject *list;
    Py_ssize_t position;

    if (CHECK_ARGUMENTS("insert", parameters))
        return NULL;
    position = natural_argument("insert", 0, "position", args[0]);
    list = position < 0 ? NULL : list_of(self);
    ((History *)self)->is_unknown = 1;
    if (list == NULL || PyList_Insert(list, position, args[1]))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
history_pop(PyObject *self, PyObject *index)
{
    PyObject *list = list_of(self), *version;

    if (list == NULL)
        return NULL;
    version = PyObject_GetItem(list, index);
    if (version != NULL && PyObject_DelItem(list, index))
        Py_CLEAR(version);
    return version;
}

static PyMethodDef history_methods[] = {
    {"append", history_append_method, METH_O, NULL},
    {"insert", (PyCFunction)(void (*)(void))history_insert, METH_FASTCALL, NULL},
    {"pop", history_pop, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot history_slots[] = {
    {Py_tp_doc, "The versions of a key: see emberflow.engine.loops.items."},
    {Py_tp_new, history_new},
    {Py_tp_dealloc, history_dealloc},
    {Py_tp_methods, history_methods},
    {Py_sq_length, history_length},
    {Py_sq_item, history_item},
    {Py_mp_length, history_length},
    {Py_mp_subscript, history_subscript},
    {Py_mp_ass_subscript, history_assign},
    {0, NULL},
};

/* No cycle can go through a history: the engine shows it to nobody, and nothing in it refers to the engine. So
 * the garbage collector need not know it. */
static PyType_Spec history_spec = {
    .name = "emberflow.native._loops.History",
    .basicsize = sizeof(History),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = history_slots,
};

/* The accumulator that an item at a place goes on from, a new reference: that of the last version, if the item
 * is behind it and its key lives until then. NULL if Python has to deal with the item, perhaps with an
 * exception. */
static PyObject *
accumulator_ahead(const Known *known, PyObject *versions, PyObject *place, PyObject *absent, long long expires)
{
    PyObject *list = versions, *last;

    if (is_history(known, versions)) {
        const History *history = (const History *)versions;
        long long time, front;
        if (history->is_short) {
            if (moment_in(place, &time, &front) || time < history->time
                || (time == history->time
                    && (front < history->front
                        || (front == history->front && PyTuple_GET_SIZE(place) < 3))))
                return NULL;
            if (expires
                && (unsigned long long)time - (unsigned long long)history->time
                       >= (unsigned long long)expires)
                return NULL;
            return Py_NewRef(history->held);
        }
        list = history->held;
    }
    if (!PyList_CheckExact(list) || !PyList_GET_SIZE(list))
        return NULL;
    last = last_of(list);
    if (!is_entry(last, VERSION_SIZE) || (PyObject *)Py_TYPE(ACCUMULATOR(last)) == absent
        || is_before(PLACE(last), place) <= 0 || (expires && !is_alive(PLACE(last), place, expires)))
        return NULL;
    return Py_NewRef(ACCUMULATOR(last));
}

/* Append a new version, which is given away: the size then, or -1 with an exception. */
static Py_ssize_t
append_version(const Known *known, PyObject *versions, PyObject *key, PyObject *version)
{
    if (is_history(known, versions)) {
        History *history = (History *)versions;
        if (!looks_like(key, history->key))
            history->is_unknown = 1;
        return history_append(history, version) ? -1 : history_size(history);
    }
    return append_made(versions, version) ? -1 : PyList_GET_SIZE(versions);
}

/* reduce_in_order(items, start, output, key_of, combine, buckets, touched, out, with_key, absent,
 * refused, expires) -> position */
static PyObject *
reduce_in_order(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {
        {"items", A_LIST},
        {"start", AN_INT},
        {"output", A_LIST},
        {"key_of", A_FUNCTION},
        {"combine", A_FUNCTION},
        {"buckets", A_DICT},
        {"touched", A_LIST},
        {"out", A_TUPLE},
        {"with_key", A_BOOL},
        {"absent", A_TYPE},
        {"refused", A_TYPE},
        {"expires", ANYTHING},
    };
    const Known *known = known_of(module);
    PyObject *items, *output, *key_of, *combine, *buckets, *touched, *out, *absent, *refused;
    Py_ssize_t position;
    long long expires = 0; /* never */
    int with_key;

    if (CHECK_ARGUMENTS("reduce_in_order", parameters))
        return NULL;
    items = args[0], output = args[2], key_of = args[3], combine = args[4], buckets = args[5];
    touched = args[6], out = args[7], absent = args[9], refused = args[10];
    position = natural_argument("reduce_in_order", 1, "start", args[1]);
    with_key = args[8] == Py_True;
    if (position < 0 || expires_argument("reduce_in_order", 11, args[11], &expires))
        return NULL;

    for (; position < PyList_GET_SIZE(items); position++) {
        PyObject *item = PyList_GET_ITEM(items, position);
        PyObject *key, *versions, *before, *accumulator;
        Py_ssize_t size;
        int failed;

        if (!is_item(item) || is_tombstone(item))
            return PyLong_FromSsize_t(position);
        key = PyObject_CallOneArg(key_of, PAYLOAD(item));
        if (key == NULL)
            return stopped_at(position);
        versions = PyDict_GetItemWithError(buckets, key);
        if (versions == NULL) {
            Py_DECREF(key);
            return stopped_at(position);
        }
        Py_INCREF(versions);
        before = accumulator_ahead(known, versions, PLACE(item), absent, expires);
        accumulator = NULL;
        if (before != NULL) {
            PyObject *stack[3] = {NULL, before, PAYLOAD(item)};
            accumulator = PyObject_Vectorcall(combine, stack + 1,
                                              2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
            Py_DECREF(before);
        }
        if (accumulator == NULL || (PyObject *)Py_TYPE(accumulator) == refused) {
            Py_XDECREF(accumulator);
            Py_DECREF(versions);
            Py_DECREF(key);
            return stopped_at(position);
        }
        size = append_version(known, versions, key,
                              TUPLE_OF(PLACE(item), MARK(item), PAYLOAD(item), accumulator));
        failed = size < 0;
        if (size == 2)
            failed = PyList_Append(touched, versions);
        if (!failed) {
            PyObject *sent
                = with_key ? TUPLE_OF(key, accumulator) : Py_NewRef(accumulator);
            failed = append_made(output, sent == NULL ? NULL : child_of(item, out, sent));
            Py_XDECREF(sent);
        }
        Py_DECREF(accumulator);
        Py_DECREF(versions);
        Py_DECREF(key);
        if (failed)
            return NULL;
    }
    return PyLong_FromSsize_t(position);
}

/* Whether all ticks are in a list and have later times than an item. It leaves no exception but one that is not
 * to be caught. */
static int
are_later(PyObject *ticks, PyObject *last)
{
    long long time, front;
    Py_ssize_t number;

    if (!PyList_CheckExact(ticks) || !is_item(last) || moment_in(PLACE(last), &time, &front))
        return 0;
    for (number = 0; number < PyList_GET_SIZE(ticks); number++) {
        PyObject *at = PyObject_GetAttrString(PyList_GET_ITEM(ticks, number), "time");
        int overflow = 0, is_later = 0;
        if (at == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                return -1;
            PyErr_Clear();
            return 0;
        }
        if (PyLong_CheckExact(at)) {
            long long its = PyLong_AsLongLongAndOverflow(at, &overflow);
            is_later = overflow ? overflow > 0 : its > time;
        }
        Py_DECREF(at);
        if (!is_later)
            return 0;
    }
    return 1;
}

/* reduce_triples(items, start, end, output, combine, buckets, touched, out, absent, expires, ticks_of,
 * ticking) -> position */
static PyObject *
reduce_triples(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {
        {"items", A_LIST},
        {"start", AN_INT},
        {"end", AN_INT},
        {"output", A_LIST},
        {"combine", A_FUNCTION},
        {"buckets", A_DICT},
        {"touched", A_LIST},
        {"out", A_TUPLE},
        {"absent", A_TYPE},
        {"expires", ANYTHING},
        {"ticks_of", ANYTHING},
        {"ticking", A_LIST},
    };
    const Known *known = known_of(module);
    PyObject *items, *output, *combine, *buckets, *touched, *out, *absent, *ticks_of, *ticking;
    Py_ssize_t position, end;
    long long expires = 0; /* never */

    if (CHECK_ARGUMENTS("reduce_triples", parameters))
        return NULL;
    items = args[0], output = args[3], combine = args[4], buckets = args[5], touched = args[6];
    out = args[7], absent = args[8], ticks_of = args[10], ticking = args[11];
    position = natural_argument("reduce_triples", 1, "start", args[1]);
    if (position < 0)
        return NULL;
    end = natural_argument("reduce_triples", 2, "end", args[2]);
    if (end < 0 || expires_argument("reduce_triples", 9, args[9], &expires))
        return NULL;
    if (ticks_of != Py_None && !PyCallable_Check(ticks_of)) {
        wrong_argument("reduce_triples", 10, "ticks_of", "None or callable", ticks_of);
        return NULL;
    }

    for (; position < end && position < PyList_GET_SIZE(items); position++) {
        PyObject *item = PyList_GET_ITEM(items, position);
        PyObject *mapped, *key, *versions, *before, *accumulator, *sent = NULL;
        Py_ssize_t size;
        int failed, has_ticks = 0, is_quiet = 0, goes_on = 0;

        if (!is_item(item) || is_tombstone(item))
            return PyLong_FromSsize_t(position);
        mapped = PAYLOAD(item);
        if (!PyTuple_CheckExact(mapped) || PyTuple_GET_SIZE(mapped) != 3)
            return PyLong_FromSsize_t(position);
        key = PyTuple_GET_ITEM(mapped, 0);
        versions = PyDict_GetItemWithError(buckets, key);
        if (versions == NULL)
            return stopped_at(position);
        Py_INCREF(versions);
        before = accumulator_ahead(known, versions, PLACE(item), absent, expires);
        accumulator = NULL;
        if (before != NULL) {
            PyObject *stack[3] = {NULL, before, PyTuple_GET_ITEM(mapped, 2)};
            accumulator = PyObject_Vectorcall(combine, stack + 1,
                                              2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
            Py_DECREF(before);
        }
        if (accumulator != NULL)
            sent = TUPLE_OF(key, Py_True, accumulator);
        if (sent != NULL && ticks_of != Py_None) {
            PyObject *ticks = PyObject_CallOneArg(ticks_of, sent);
            is_quiet = ticks == Py_None;
            has_ticks = ticks == NULL ? -1 : PyObject_IsTrue(ticks);
            if (has_ticks > 0) {
                Py_ssize_t count = PyList_GET_SIZE(items);
                goes_on = are_later(ticks, PyList_GET_ITEM(items, (end < count ? end : count) - 1));
            }
            Py_XDECREF(ticks);
        }
        if (sent == NULL || has_ticks < 0 || goes_on < 0) {
            Py_XDECREF(sent);
            Py_XDECREF(accumulator);
            Py_DECREF(versions);
            return stopped_at(position);
        }
        size = append_version(known, versions, key,
                              TUPLE_OF(PLACE(item), MARK(item), mapped, accumulator));
        failed = size < 0 || (size == 2 && PyList_Append(touched, versions))
                 || (!is_quiet && append_made(output, child_of(item, out, sent)))
                 || (has_ticks && append_made(ticking, item_of(PLACE(item), MARK(item), sent)));
        Py_DECREF(sent);
        Py_DECREF(accumulator);
        Py_DECREF(versions);
        if (failed)
            return NULL;
        if (has_ticks && !goes_on)
            return PyLong_FromSsize_t(position + 1);
    }
    return PyLong_FromSsize_t(position);
}

/* spread(items, start, spread, key_of, owners, marks, hosts) -> position */
static PyObject *
spread(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {
        {"items", A_LIST},  {"start", AN_INT}, {"spread", A_LIST}, {"key_of", A_FUNCTION},
        {"owners", A_DICT}, {"marks", A_LIST}, {"hosts", A_LIST},
    };
    PyObject *items, *lists, *key_of, *owners, *marks, *hosts;
    /* For each worker the last mark that was looked up, and what it becomes on the way there. */
    PyObject *met[WORKERS_REMEMBERED] = {NULL}, *met_as[WORKERS_REMEMBERED] = {NULL};
    Py_ssize_t position, workers;

    if (CHECK_ARGUMENTS("spread", parameters) || check_members("spread", 2, "spread", args[2], A_LIST)
        || check_members("spread", 5, "marks", args[5], A_DICT))
        return NULL;
    if (PyList_GET_SIZE(args[2]) != PyList_GET_SIZE(args[5])) {
        PyErr_Format(PyExc_ValueError, "spread: %zd lists to spread to, and marks for %zd workers",
                     PyList_GET_SIZE(args[2]), PyList_GET_SIZE(args[5]));
        return NULL;
    }
    items = args[0], lists = args[2], key_of = args[3], owners = args[4], marks = args[5];
    hosts = args[6];
    workers = PyList_GET_SIZE(lists);
    position = natural_argument("spread", 1, "start", args[1]);
    if (position < 0)
        return NULL;

    for (; position < PyList_GET_SIZE(items); position++) {
        PyObject *item = PyList_GET_ITEM(items, position);
        PyObject *key, *owner, *marked;
        Py_ssize_t worker;
        uint32_t hash;

        if (!is_item(item))
            return PyLong_FromSsize_t(position);
        key = PyObject_CallOneArg(key_of, PAYLOAD(item));
        if (key == NULL)
            return stopped_at(position);
        if (PyList_GET_SIZE(hosts) && hash_of_composite(key, &hash)) {
            uint64_t parts = (uint64_t)PyList_GET_SIZE(hosts);
            uint64_t part = (uint64_t)(hash ^ 0x80000000U) * parts >> 32;
            owner = PyList_GET_ITEM(hosts, (Py_ssize_t)part);
        }
        else {
            owner = PyDict_GetItemWithError(owners, key);
        }
        Py_DECREF(key);
        if (owner == NULL)
            return stopped_at(position);
        worker = PyLong_AsSsize_t(owner);
        if (worker < 0 || worker >= workers)
            return stopped_at(position);
        if (worker < WORKERS_REMEMBERED && met[worker] == MARK(item)) {
            marked = met_as[worker];
        }
        else {
            marked = PyDict_GetItemWithError(PyList_GET_ITEM(marks, worker), MARK(item));
            if (marked == NULL)
                return stopped_at(position);
            if (worker < WORKERS_REMEMBERED)
                met[worker] = MARK(item), met_as[worker] = marked;
        }
        /* Partitions of a sink leave marks as they are. */
        if (append_made(PyList_GET_ITEM(lists, worker),
                        marked == MARK(item) ? Py_NewRef(item)
                                             : item_of(PLACE(item), marked, PAYLOAD(item))))
            return NULL;
    }
    return PyLong_FromSsize_t(position);
}

/* The identity of a report, which begins with time and front; NULL with an exception. */
static PyObject *
identity_of(const char *function, PyObject *report)
{
    PyObject *identity;

    if (!PyTuple_CheckExact(report) || !PyTuple_GET_SIZE(report)) {
        wrong_argument(function, 0, "report", "a tuple that begins with an identity", report);
        return NULL;
    }
    identity = PyTuple_GET_ITEM(report, 0);
    if (!PyTuple_Check(identity) || PyTuple_GET_SIZE(identity) < 2
        || !PyLong_Check(PyTuple_GET_ITEM(identity, 0))
        || !PyLong_Check(PyTuple_GET_ITEM(identity, 1))) {
        PyErr_Format(PyExc_TypeError,
                     "%s: argument 1 (`report`) must begin with an identity, a tuple that begins with "
                     "two ints, got %R",
                     function, identity);
        return NULL;
    }
    return identity;
}

/* closer_key(report) -> int. See `transactions.closer_key`. Only 12 bits of the result are kept, and 64
 * bits of each number decide them. */
static PyObject *
closer_key(PyObject *module, PyObject *report)
{
    PyObject *identity = identity_of("closer_key", report);
    uint64_t time, front;

    if (identity == NULL)
        return NULL;
    time = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(identity, 0));
    front = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(identity, 1));
    return PyLong_FromLong((long)(((time * 0x9E3779B97F4A7C15U >> 48) + front) & 0xFFF));
}

/* front_of(report) -> int. See `transactions.front_of`. */
static PyObject *
front_of(PyObject *module, PyObject *report)
{
    PyObject *identity = identity_of("front_of", report);
    return identity == NULL ? NULL : Py_NewRef(PyTuple_GET_ITEM(identity, 1));
}

/* Take the next lists of versions, or the histories, from a list of buckets: how many, AHEAD at most; -1 with
 * an exception if one is neither. */
static int
take_versions(const Known *known, PyObject *buckets, Py_ssize_t position, PyObject **taken)
{
    PyObject *lists[AHEAD];
    int count = 0, full = 0, i;

    for (; count < AHEAD && position + count < PyList_GET_SIZE(buckets); count++) {
        taken[count] = PyList_GET_ITEM(buckets, position + count);
        FETCH(taken[count]);
    }
    for (i = 0; i < count; i++) {
        int is_compact = is_history(known, taken[i]);
        if (!is_compact && !PyList_CheckExact(taken[i])) {
            PyErr_Format(PyExc_TypeError, "bucket %zd must be a list of entries, got %.100s",
                         position + i, Py_TYPE(taken[i])->tp_name);
            return -1;
        }
        if (!is_compact)
            lists[full++] = taken[i];
        else if (!((History *)taken[i])->is_short)
            lists[full++] = ((History *)taken[i])->held;
    }
    fetch_last(lists, full);
    return count;
}

/* trim_to_last(touched, minimal, begun, key_of, absent, restored) -> (rest, unnoted) */
static PyObject *
trim_to_last(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[]
        = {{"touched", A_LIST},   {"minimal", A_MOMENT}, {"begun", A_MOMENT},
           {"key_of", ANYTHING}, {"absent", A_TYPE},     {"restored", A_TYPE}};
    const Known *known = known_of(module);
    PyObject *touched, *minimal, *begun, *rest, *unnoted, *taken[AHEAD];
    Py_ssize_t position = 0;

    if (CHECK_ARGUMENTS("trim_to_last", parameters))
        return NULL;
    touched = args[0], minimal = args[1], begun = args[2];
    rest = PyList_New(0);
    unnoted = PyList_New(0);
    if (rest == NULL || unnoted == NULL)
        goto failed;
    while (position < PyList_GET_SIZE(touched)) {
        int count = take_versions(known, touched, position, taken), i;
        if (count < 0)
            goto failed;
        position += count;
        for (i = 0; i < count; i++) {
            PyObject *versions = taken[i];
            History *history = is_history(known, versions) ? (History *)versions : NULL;
            PyObject *list = history == NULL ? versions : history->held;
            Py_ssize_t size = history == NULL ? PyList_GET_SIZE(list) : history_size(history);
            int before;

            if (!size)
                continue;
            if (size > 1) { /* one that has only a version below `begun` has not changed since */
                before
                    = history == NULL ? entry_is_before(list, 0, begun) : first_is_before(history, begun);
                if (before < 0 || (before && PyList_Append(unnoted, versions)))
                    goto failed;
            }
            if (history != NULL && history->is_short)
                continue; /* it was in the list twice */
            before = entry_is_before(list, size - 1, minimal);
            if (before < 0)
                goto failed;
            if (!before) {
                if (PyList_Append(rest, versions))
                    goto failed;
            }
            else if (history == NULL ? drop_first(list, size - 1)
                                     : settle(history, args[3], args[4], args[5], known->key)) {
                goto failed;
            }
        }
    }
    return Py_BuildValue("(NN)", rest, unnoted);

failed:
    Py_XDECREF(rest);
    Py_XDECREF(unnoted);
    return NULL;
}

/* Look at the last version of a bucket: 0, or -1 with an exception. The history of the version knows its key, if
 * `key` is not NULL; otherwise the user's function is asked. */
static int
look_at_version(const Known *known, Looked *looked, PyObject *bucket, PyObject *version, PyObject *key,
                PyObject *const *args)
{
    PyObject *key_of = args[3], *operation = args[4], *absent = args[5], *restored = args[6];
    int failed;

    if (!is_entry(version, VERSION_SIZE) || (PyObject *)Py_TYPE(ACCUMULATOR(version)) == absent)
        return note_row(looked, bucket, Py_NewRef(Py_None));
    key = key == NULL ? key_of_version(version, key_of, restored, known->key) : Py_NewRef(key);
    if (key == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        PyErr_Clear();
        return note_row(looked, bucket, Py_NewRef(Py_None));
    }
    failed = note_version(looked, known->row, operation, bucket, key, PLACE(version), ACCUMULATOR(version));
    Py_DECREF(key);
    return failed;
}

/* A moment, read once for many histories. */
typedef struct {
    PyObject *given;
    long long time, front;
    int is_read; /* whether it has these two numbers and nothing else */
} Bound;

static inline Bound
bound_at(PyObject *moment)
{
    Bound bound = {.given = moment};

    bound.is_read = !moment_in(moment, &bound.time, &bound.front) && PyTuple_GET_SIZE(moment) == 2;
    return bound;
}

/* Whether the version of a history that is short is before a moment: 1, 0, or -1 with an exception. */
static inline int
short_is_before(const History *history, const Bound *bound)
{
    if (!bound->is_read)
        return first_is_before(history, bound->given);
    return history->time != bound->time ? history->time < bound->time : history->front < bound->front;
}

/* Look at the version of a history that is short: 0, or -1 with an exception. */
static int
look_at_short(History *history, const Bound *moment, const Bound *since, PyObject *type, PyObject *operation,
              Looked *looked)
{
    PyObject *bucket = (PyObject *)history, *place;
    int result = short_is_before(history, moment);

    if (!result)
        return PyList_Append(looked->going_on, bucket);
    if (result > 0)
        result = short_is_before(history, since);
    if (result)
        return result > 0 ? 0 : -1;
    result = note_packed(looked, bucket, history->key, history->time, history->front, history->held);
    if (result)
        return result > 0 ? 0 : -1;
    place = short_place(history);
    result = note_row(looked, bucket,
                      place == NULL ? NULL : row_of(type, operation, history->key, place, history->held));
    Py_XDECREF(place);
    return result;
}

/* last_accumulators(given, moment, since, key_of, operation, absent, restored, packs)
 * -> (found, rows, going on, others, packed, how many of them) */
static PyObject *
last_accumulators(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {
        {"given", A_LIST},       {"moment", A_MOMENT}, {"since", A_MOMENT},   {"key_of", A_FUNCTION},
        {"operation", ANYTHING}, {"absent", A_TYPE},   {"restored", A_TYPE},  {"packs", A_BOOL},
    };
    const Known *known = known_of(module);
    PyObject *given, *moment, *since, *taken[AHEAD];
    Py_ssize_t position = 0;
    Bound until, from;
    Looked looked;

    if (CHECK_ARGUMENTS("last_accumulators", parameters))
        return NULL;
    if (known->row == NULL)
        return unprepared("last_accumulators");
    given = args[0], moment = args[1], since = args[2];
    until = bound_at(moment), from = bound_at(since);
    if (begin_looked(&looked, args[7]))
        return NULL;
    while (position < PyList_GET_SIZE(given)) {
        int count = take_versions(known, given, position, taken), i;
        if (count < 0)
            goto failed;
        for (i = 0; i < count; i++)
            if (is_history(known, taken[i]) && ((History *)taken[i])->is_short) {
                FETCH(((History *)taken[i])->key);
                FETCH(((History *)taken[i])->held);
            }
        position += count;
        for (i = 0; i < count; i++) {
            PyObject *list = taken[i], *last, *key = NULL;
            Py_ssize_t final;
            int before;

            if (is_history(known, taken[i])) {
                History *history = (History *)taken[i];
                if (history->is_short) {
                    if (look_at_short(history, &until, &from, known->row, args[4], &looked))
                        goto failed;
                    continue;
                }
                if (expanded(history, args[6]))
                    goto failed;
                list = history->held;
                key = history->is_unknown ? NULL : history->key;
            }
            final = below(list, moment);
            if (final < 0 || (final < PyList_GET_SIZE(list) && PyList_Append(looked.going_on, taken[i])))
                goto failed;
            if (!final)
                continue;
            before = entry_is_before(list, final - 1, since);
            if (before > 0)
                continue;
            last = Py_NewRef(entry_at(list, final - 1)); /* while the user's function gives the key */
            before = before < 0 ? -1 : look_at_version(known, &looked, taken[i], last, key, args);
            Py_DECREF(last);
            if (before < 0)
                goto failed;
        }
    }
    return all_looked(&looked);

failed:
    forget_looked(&looked);
    return NULL;
}

/* fresh(objects, sets) -> list */
static PyObject *
fresh(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {{"objects", A_LIST}, {"sets", A_LIST}};
    Addresses *sets[SETS];

    if (CHECK_ARGUMENTS("fresh", parameters)
        || sets_argument(args[1], known_of(module)->addresses_type, sets))
        return NULL;
    return fresh_of(args[0], sets);
}

/* some_values(values, start, count) -> (position, values) */
static PyObject *
some_values(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {{"values", A_DICT}, {"start", AN_INT}, {"count", AN_INT}};
    PyObject *found, *key, *value;
    Py_ssize_t position, count;
    int more = 1;

    if (CHECK_ARGUMENTS("some_values", parameters))
        return NULL;
    position = natural_argument("some_values", 1, "start", args[1]);
    count = position < 0 ? -1 : natural_argument("some_values", 2, "count", args[2]);
    if (count < 0)
        return NULL;
    found = PyList_New(0);
    if (found == NULL)
        return NULL;
    while (PyList_GET_SIZE(found) < count && (more = PyDict_Next(args[0], &position, &key, &value)))
        if (PyList_Append(found, value)) {
            Py_DECREF(found);
            return NULL;
        }
    return Py_BuildValue("(nN)", more ? position : 0, found);
}

/* Machines that keep nothing. Each gives the outputs of all items; or None if something is unusual, such
 * as a function that raises. Then Python deals with all of them. */

/* After a failure: None if Python deals with it. */
static PyObject *
unusual(PyObject *output)
{
    Py_XDECREF(output);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL;
        PyErr_Clear();
    }
    Py_RETURN_NONE;
}

/* NULL with a TypeError: a list of items holds something else. */
static PyObject *
not_an_item(const char *function, PyObject *output, PyObject *item)
{
    Py_DECREF(output);
    PyErr_Format(PyExc_TypeError, "%s: argument 1 (`items`) must hold (place, mark, payload), got %R",
                 function, item);
    return NULL;
}

/* extended(items, child) -> items */
static PyObject *
extended(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {{"items", A_LIST}, {"child", A_TUPLE}};
    PyObject *items, *output;
    Py_ssize_t i;

    if (CHECK_ARGUMENTS("extended", parameters))
        return NULL;
    items = args[0];
    output = PyList_New(PyList_GET_SIZE(items));
    for (i = 0; output != NULL && i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        if (!is_item(item))
            return not_an_item("extended", output, item);
        if (set_made(output, i, child_of(item, args[1], PAYLOAD(item))))
            Py_CLEAR(output);
    }
    return output;
}

/* The one image of each item. The function is called with the payload, or with the time and the payload. */
static PyObject *
images(PyObject *const *args, int with_time)
{
    PyObject *items = args[0], *output;
    Py_ssize_t i;

    output = PyList_New(PyList_GET_SIZE(items));
    for (i = 0; output != NULL && i < PyList_GET_SIZE(output); i++) {
        PyObject *item = i < PyList_GET_SIZE(items) ? PyList_GET_ITEM(items, i) : Py_None;
        PyObject *image = NULL;
        if (is_item(item) && !with_time)
            image = PyObject_CallOneArg(args[1], PAYLOAD(item));
        else if (is_item(item) && PyTuple_GET_SIZE(PLACE(item))) {
            PyObject *stack[3] = {NULL, PyTuple_GET_ITEM(PLACE(item), 0), PAYLOAD(item)};
            image = PyObject_Vectorcall(args[1], stack + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        }
        if (image == NULL || (PyObject *)Py_TYPE(image) == args[3]) {
            Py_XDECREF(image);
            return unusual(output);
        }
        if (set_made(output, i, child_of(item, args[2], image)))
            Py_CLEAR(output);
        Py_DECREF(image);
    }
    return output;
}

/* mapped(items, function, child, at) -> items or None */
static PyObject *
mapped(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[]
        = {{"items", A_LIST}, {"function", A_FUNCTION}, {"child", A_TUPLE}, {"at", A_TYPE}};
    return CHECK_ARGUMENTS("mapped", parameters) ? NULL : images(args, 0);
}

/* mapped_with_time(items, function, child, at) -> items or None */
static PyObject *
mapped_with_time(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[]
        = {{"items", A_LIST}, {"function", A_FUNCTION}, {"child", A_TUPLE}, {"at", A_TYPE}};
    return CHECK_ARGUMENTS("mapped_with_time", parameters) ? NULL : images(args, 1);
}

/* kept(items, function, child) -> items or None */
static PyObject *
kept(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[]
        = {{"items", A_LIST}, {"function", A_FUNCTION}, {"child", A_TUPLE}};
    PyObject *items, *output;
    Py_ssize_t i;

    if (CHECK_ARGUMENTS("kept", parameters))
        return NULL;
    items = args[0];
    output = PyList_New(0);
    for (i = 0; output != NULL && i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        PyObject *said = is_item(item) ? PyObject_CallOneArg(args[1], PAYLOAD(item)) : NULL;
        int stays = said == NULL ? -1 : PyObject_IsTrue(said);
        Py_XDECREF(said);
        if (stays < 0)
            return unusual(output);
        if (stays && append_made(output, child_of(item, args[2], PAYLOAD(item))))
            Py_CLEAR(output);
    }
    return output;
}

/* Append the images of an item: 1, 0 if one is unusual, -1 with an exception. */
static int
append_images(PyObject *output, PyObject *item, PyObject *images, PyObject *children, PyObject *at)
{
    Py_ssize_t i;

    if ((!PyTuple_CheckExact(images) && !PyList_CheckExact(images))
        || PySequence_Fast_GET_SIZE(images) > PyTuple_GET_SIZE(children))
        return 0;
    for (i = 0; i < PySequence_Fast_GET_SIZE(images); i++) {
        PyObject *image = PySequence_Fast_GET_ITEM(images, i);
        PyObject *child = PyTuple_GET_ITEM(children, i);
        if ((PyObject *)Py_TYPE(image) == at || !PyTuple_CheckExact(child))
            return 0;
        if (append_made(output, child_of(item, child, image)))
            return -1;
    }
    return 1;
}

/* flat_mapped(items, function, children, at) -> items or None */
static PyObject *
flat_mapped(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[]
        = {{"items", A_LIST}, {"function", A_FUNCTION}, {"children", A_TUPLE}, {"at", A_TYPE}};
    PyObject *items, *output;
    Py_ssize_t i;

    if (CHECK_ARGUMENTS("flat_mapped", parameters))
        return NULL;
    items = args[0];
    output = PyList_New(0);
    for (i = 0; output != NULL && i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        PyObject *images = is_item(item) ? PyObject_CallOneArg(args[1], PAYLOAD(item)) : NULL;
        int result = images == NULL ? 0 : append_images(output, item, images, args[2], args[3]);
        Py_XDECREF(images);
        if (!result)
            return unusual(output);
        if (result < 0)
            Py_CLEAR(output);
    }
    return output;
}

/* (place, mark, (key, number, identity's length, payload)), of an item and the key of its access. */
static PyObject *
access_of(PyObject *item, PyObject *key, PyObject *number, Py_ssize_t depth, int doubled)
{
    PyObject *payload = PAYLOAD(item), *length, *access, *made;

    length = PyLong_FromSsize_t(PyTuple_GET_SIZE(PLACE(item)) - depth);
    payload = doubled ? TUPLE_OF(payload, payload) : Py_NewRef(payload);
    access = length == NULL || payload == NULL
                 ? NULL
                 : TUPLE_OF(key, number, length, payload);
    made = access == NULL ? NULL : item_of(PLACE(item), MARK(item), access);
    Py_XDECREF(length);
    Py_XDECREF(payload);
    Py_XDECREF(access);
    return made;
}

/* accesses(items, key_of, number, depth, alone, carried) -> items or None */
static PyObject *
accesses(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {
        {"items", A_LIST}, {"key_of", A_FUNCTION}, {"number", AN_INT},
        {"depth", AN_INT}, {"alone", A_BOOL},      {"carried", A_BOOL},
    };
    PyObject *items, *output;
    Py_ssize_t depth, i;
    int alone, carried;

    if (CHECK_ARGUMENTS("accesses", parameters))
        return NULL;
    items = args[0];
    depth = natural_argument("accesses", 3, "depth", args[3]);
    alone = args[4] == Py_True, carried = args[5] == Py_True;
    if (depth < 0)
        return NULL;
    output = PyList_New(PyList_GET_SIZE(items));
    for (i = 0; output != NULL && i < PyList_GET_SIZE(output); i++) {
        PyObject *item = i < PyList_GET_SIZE(items) ? PyList_GET_ITEM(items, i) : Py_None, *own, *key;
        if (!is_item(item) || PyTuple_GET_SIZE(PLACE(item)) < depth)
            return unusual(output);
        own = PAYLOAD(item);
        if (carried) {
            if (!PyTuple_CheckExact(own) || PyTuple_GET_SIZE(own) != 2)
                return unusual(output);
            own = PyTuple_GET_ITEM(own, 1);
        }
        key = PyObject_CallOneArg(args[1], own);
        if (key == NULL
            || !(PyLong_CheckExact(key) || PyUnicode_CheckExact(key) || PyBytes_CheckExact(key))) {
            Py_XDECREF(key);
            return unusual(output);
        }
        if (set_made(output, i, access_of(item, key, args[2], depth, alone && !carried)))
            Py_CLEAR(output);
        Py_DECREF(key);
    }
    return output;
}

/* (place, mark, (identity, number, payload)), of an item. */
static PyObject *
report_of(PyObject *item, Py_ssize_t depth, PyObject *number)
{
    Py_ssize_t length = PyTuple_GET_SIZE(PLACE(item)), end = length - depth;
    PyObject *identity, *report, *made;

    /* As Python counts from the end. */
    identity = unseen(PyTuple_GetSlice(PLACE(item), 0, end < 0 ? end + length : end));
    report = identity == NULL ? NULL : TUPLE_OF(identity, number, PAYLOAD(item));
    made = report == NULL ? NULL : item_of(PLACE(item), MARK(item), report);
    Py_XDECREF(identity);
    Py_XDECREF(report);
    return made;
}

/* reports(items, depth, number) -> items */
static PyObject *
reports(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[]
        = {{"items", A_LIST}, {"depth", AN_INT}, {"number", AN_INT}};
    PyObject *items, *output;
    Py_ssize_t depth, i;

    if (CHECK_ARGUMENTS("reports", parameters))
        return NULL;
    items = args[0];
    depth = natural_argument("reports", 1, "depth", args[1]);
    if (depth < 0)
        return NULL;
    output = PyList_New(PyList_GET_SIZE(items));
    for (i = 0; output != NULL && i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        if (!is_item(item))
            return not_an_item("reports", output, item);
        if (set_made(output, i, report_of(item, depth, args[2])))
            Py_CLEAR(output);
    }
    return output;
}

/* sort_by_place(items) -> whether it could */
static PyObject *
sort_by_place(PyObject *module, PyObject *items)
{
    int sorted;

    if (!PyList_CheckExact(items)) {
        wrong_argument("sort_by_place", 0, "items", "a list", items);
        return NULL;
    }
    sorted = sort_items(items);
    return sorted < 0 ? NULL : PyBool_FromLong(sorted);
}

/* hash_of_common(key) -> the hash, or None. For tests. */
static PyObject *
hash_of_common_key(PyObject *module, PyObject *key)
{
    uint32_t hash;
    if (!hash_of_common(key, &hash))
        Py_RETURN_NONE;
    return PyLong_FromLong((int32_t)hash);
}

/* hash_of_composite(key) -> the hash, or None. For tests. */
static PyObject *
hash_of_composite_key(PyObject *module, PyObject *key)
{
    uint32_t hash;
    if (!hash_of_composite(key, &hash))
        Py_RETURN_NONE;
    return PyLong_FromLong((int32_t)hash);
}

static PyMethodDef methods[] = {
    FAST(prepare),
    {"hash_of_common", hash_of_common_key, METH_O, NULL},
    {"hash_of_composite", hash_of_composite_key, METH_O, NULL},
    {"closer_key", closer_key, METH_O, NULL},
    {"front_of", front_of, METH_O, NULL},
    {"sort_by_place", sort_by_place, METH_O, NULL},
    FAST(reduce_in_order),
    FAST(reduce_triples),
    FAST(spread),
    FAST(extended),
    FAST(mapped),
    FAST(mapped_with_time),
    FAST(kept),
    FAST(flat_mapped),
    FAST(accesses),
    FAST(reports),
    FAST(last_accumulators),
    FAST(trim_to_last),
    FAST(some_values),
    FAST(fresh),
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    Known *known = known_of(module);

    known->key = PyUnicode_InternFromString("key");
    if (known->key == NULL)
        return -1;
    if (add_runs(module))
        return -1;
    known->history_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &history_spec, NULL);
    if (known->history_type == NULL || PyModule_AddType(module, known->history_type))
        return -1;
    known->addresses_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &addresses_spec, NULL);
    if (known->addresses_type == NULL || PyModule_AddType(module, known->addresses_type))
        return -1;
    return add_interface(module);
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    Py_VISIT(known_of(module)->row);
    Py_VISIT(known_of(module)->restored);
    Py_VISIT(known_of(module)->key);
    Py_VISIT(known_of(module)->history_type);
    Py_VISIT(known_of(module)->addresses_type);
    return 0;
}

static int
clear(PyObject *module)
{
    Py_CLEAR(known_of(module)->row);
    Py_CLEAR(known_of(module)->restored);
    Py_CLEAR(known_of(module)->key);
    Py_CLEAR(known_of(module)->history_type);
    Py_CLEAR(known_of(module)->addresses_type);
    return 0;
}

static void
free_known(void *module)
{
    clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    EACH_INTERPRETER
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "emberflow.native._loops",
    .m_doc = "See emberflow.engine.loops.items.",
    .m_size = sizeof(Known),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = free_known,
};

PyMODINIT_FUNC
PyInit__loops(void)
{
    return PyModuleDef_Init(&definition);
}
