/* The hottest loops of a state, compiled, and the buckets that they work on. `accesses.py` says what each
 * loop is for, and does the same where this module could not be built; tests/engine/test_accesses.py holds
 * the two to each other.
 *
 * What is guaranteed is what `_loops.c` says. A bucket is an object of the type that this module defines,
 * so its members are those of a C structure. Python sets them as it likes: a loop leaves a bucket to Python
 * whose entries are no list or whose aborts are no dict.
 *
 * Buckets lie far from each other in memory, so the loops fetch AHEAD of them at once: see
 * `headers/buckets.h`.
 */

#include "headers/buckets.h"
#include <stddef.h>
#include <structmember.h>

#define USES_MAX 64

/* An entry is (place, mark, access, length, payload, before, value, failed). */
#define ACCESS(entry) PyTuple_GET_ITEM(entry, 2)
#define LENGTH(entry) PyTuple_GET_ITEM(entry, 3)
#define VALUE(entry) PyTuple_GET_ITEM(entry, 6)
#define FAILED(entry) PyTuple_GET_ITEM(entry, 7)
#define ENTRY_SIZE 8

/* What the module was told by `prepare`, and the type of buckets that it made. */
typedef struct {
    PyTypeObject *bucket_type;
    PyObject *no_aborts; /* the aborts of a new bucket */
    PyObject *row, *at, *result, *committed, *output;
} Known;

static inline Known *
known_of(PyObject *module)
{
    return PyModule_GetState(module);
}

/* What a bucket has while it is not short. */
typedef struct {
    PyObject *entries, *aborts, *base;
} Open;

/* `accesses.StateBucket`, in 48 bytes. A member is NULL if Python has deleted it.
 *
 * A bucket that `is_short` has one entry, which is final and counts, and no list of it: only the global time
 * and the access are kept, and the value is the bucket's own. Its aborts are none, and its base is None.
 * Python sees the entry once it asks for the entries (`expanded`). Most buckets of a worker are short, so all
 * that others have besides is apart. */
typedef struct {
    PyObject_HEAD
    PyObject *key, *value;
    union {
        Open *open;
        long long time; /* if it is short */
    } is;
    long long front : 52;
    unsigned long long access : 8;
    unsigned long long is_short : 1;
    unsigned long long counts : 1, noted : 1;
} Bucket;

#define FRONT_BEYOND ((long long)1 << 51)

/* (time, front) */
static PyObject *
short_place(const Bucket *bucket)
{
    PyObject *time = PyLong_FromLongLong(bucket->is.time);
    PyObject *front = time == NULL ? NULL : PyLong_FromLongLong(bucket->front);
    PyObject *place = front == NULL ? NULL : TUPLE_OF(time, front);

    Py_XDECREF(time);
    Py_XDECREF(front);
    return place;
}

/* What a bucket that is not short has, with nothing in it yet; NULL with an exception. */
static Open *
open_new(void)
{
    Open *open = PyMem_Calloc(1, sizeof(Open));

    if (open == NULL)
        PyErr_NoMemory();
    return open;
}

static void
open_free(Open *open)
{
    if (open == NULL)
        return;
    Py_XDECREF(open->entries);
    Py_XDECREF(open->aborts);
    Py_XDECREF(open->base);
    PyMem_Free(open);
}

/* The only entry of a bucket that is short; NULL with an exception. */
static PyObject *
short_entry(const Bucket *bucket)
{
    PyObject *place, *access, *mark, *length, *entry = NULL;

    if (bucket->value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "value");
        return NULL;
    }
    place = short_place(bucket);
    access = place == NULL ? NULL : PyLong_FromLong((long)bucket->access);
    mark = access == NULL ? NULL : PyLong_FromLong(0);
    length = mark == NULL ? NULL : PyLong_FromLong(2);
    if (length != NULL)
        entry = TUPLE_OF(place, mark, access, length, Py_None, Py_None, bucket->value, Py_None);
    Py_XDECREF(place);
    Py_XDECREF(access);
    Py_XDECREF(mark);
    Py_XDECREF(length);
    return entry;
}

/* Let a bucket be one that is not short: 0, or -1 with an exception. */
static int
expanded(Bucket *bucket)
{
    const Known *known;
    PyObject *entry, *entries;
    Open *open;

    if (!bucket->is_short)
        return 0;
    known = PyType_GetModuleState(Py_TYPE(bucket));
    if (known == NULL || known->no_aborts == NULL) {
        unprepared("StateBucket");
        return -1;
    }
    entry = short_entry(bucket);
    entries = entry == NULL ? NULL : PyList_New(1);
    open = entries == NULL ? NULL : open_new();
    if (open == NULL) {
        Py_XDECREF(entry);
        Py_XDECREF(entries);
        return -1;
    }
    PyList_SET_ITEM(entries, 0, entry);
    open->entries = entries;
    open->aborts = Py_NewRef(known->no_aborts);
    open->base = Py_NewRef(Py_None);
    bucket->is.open = open;
    bucket->is_short = 0;
    return 0;
}

/* Whether a bucket without aborts has this as its only entry and can keep it in short; then it does. The entry
 * is final and counts. */
static int
shortened(Bucket *bucket, PyObject *entry)
{
    Open *open = bucket->is.open;
    PyObject *value = bucket->value;
    long long time, front;
    Py_ssize_t access = PyLong_AsSsize_t(ACCESS(entry));

    if (access < 0 || access > 255 || moment_in(PLACE(entry), &time, &front) || front >= FRONT_BEYOND
        || front < -FRONT_BEYOND) {
        PyErr_Clear();
        return 0;
    }
    bucket->value = Py_NewRef(VALUE(entry));
    bucket->is.time = time;
    bucket->front = front;
    bucket->access = (unsigned long long)access;
    bucket->counts = 1;
    bucket->noted = 0;
    bucket->is_short = 1;
    Py_XDECREF(value);
    open_free(open);
    return 1;
}

static PyObject *
bucket_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"key", "default", NULL};
    const Known *known = PyType_GetModuleState(type);
    PyObject *key, *value;
    Bucket *bucket;
    Open *open;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:StateBucket", names, &key, &value))
        return NULL;
    if (known == NULL || known->no_aborts == NULL)
        return unprepared("StateBucket");
    open = open_new();
    if (open == NULL)
        return NULL;
    open->entries = PyList_New(0);
    bucket = open->entries == NULL ? NULL : (Bucket *)type->tp_alloc(type, 0);
    if (bucket == NULL) {
        open_free(open);
        return NULL;
    }
    open->aborts = Py_NewRef(known->no_aborts);
    open->base = Py_NewRef(value);
    bucket->is.open = open;
    bucket->key = Py_NewRef(key);
    bucket->value = Py_NewRef(value);
    bucket->counts = 1;
    return (PyObject *)bucket;
}

static void
bucket_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Bucket *bucket = (Bucket *)self;

    Py_CLEAR(bucket->key);
    Py_CLEAR(bucket->value);
    if (!bucket->is_short)
        open_free(bucket->is.open);
    type->tp_free(self);
    Py_DECREF(type);
}

/* What pickle and copy need: the type by its name, what to call it with, and the members to set then. A
 * process that runs the twin in Python reads it too. */
static PyObject *
bucket_reduce(PyObject *self, PyObject *nothing)
{
    Bucket *bucket = (Bucket *)self;
    const Open *open;

    if (expanded(bucket))
        return NULL;
    open = bucket->is.open;
    if (bucket->key == NULL || bucket->value == NULL || open->entries == NULL || open->aborts == NULL
        || open->base == NULL) {
        PyErr_SetString(PyExc_AttributeError, "a StateBucket without all its members has no state");
        return NULL;
    }
    return Py_BuildValue("O(OO)(O{sOsOsOsOsO})", Py_TYPE(self), bucket->key, open->base, Py_None,
                         "entries", open->entries, "aborts", open->aborts, "value", bucket->value,
                         "counts", bucket->counts ? Py_True : Py_False, "noted",
                         bucket->noted ? Py_True : Py_False);
}

static PyMemberDef bucket_members[] = {
    {"key", T_OBJECT_EX, offsetof(Bucket, key), 0, NULL},
    {"value", T_OBJECT_EX, offsetof(Bucket, value), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* Python's names of what is in `Open`. Who asks for aborts or a base learns no more than what a short bucket
 * says as well; all else makes the bucket one that is not short. */
typedef struct {
    const char *name;
    size_t offset;
} Part;

static Part entries_part = {"entries", offsetof(Open, entries)};
static Part aborts_part = {"aborts", offsetof(Open, aborts)};
static Part base_part = {"base", offsetof(Open, base)};

static PyObject *
get_part(PyObject *self, void *which)
{
    Bucket *bucket = (Bucket *)self;
    const Part *part = which;
    PyObject *value;

    if (bucket->is_short && part == &aborts_part) {
        const Known *known = PyType_GetModuleState(Py_TYPE(self));
        if (known != NULL && known->no_aborts != NULL)
            return Py_NewRef(known->no_aborts);
    }
    if (bucket->is_short && part == &base_part)
        Py_RETURN_NONE;
    if (expanded(bucket))
        return NULL;
    value = *(PyObject **)((char *)bucket->is.open + part->offset);
    if (value == NULL)
        PyErr_SetString(PyExc_AttributeError, part->name);
    return Py_XNewRef(value);
}

static int
set_part(PyObject *self, PyObject *value, void *which)
{
    Bucket *bucket = (Bucket *)self;
    const Part *part = which;
    PyObject **member, *old;

    if (expanded(bucket))
        return -1;
    member = (PyObject **)((char *)bucket->is.open + part->offset);
    old = *member;
    *member = Py_XNewRef(value);
    Py_XDECREF(old);
    return 0;
}

/* (place, value) of a bucket that has one entry, kept in short; None of others. */
static PyObject *
get_short(PyObject *self, void *nothing)
{
    Bucket *bucket = (Bucket *)self;
    PyObject *place, *made;

    if (!bucket->is_short || bucket->value == NULL)
        Py_RETURN_NONE;
    place = short_place(bucket);
    made = place == NULL ? NULL : TUPLE_OF(place, bucket->value);
    Py_XDECREF(place);
    return made;
}

static PyObject *
get_flag(PyObject *self, void *which)
{
    Bucket *bucket = (Bucket *)self;
    return PyBool_FromLong(which == NULL ? bucket->counts : bucket->noted);
}

static int
set_flag(PyObject *self, PyObject *value, void *which)
{
    Bucket *bucket = (Bucket *)self;

    if (value == NULL || !PyBool_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "attribute value type must be bool");
        return -1;
    }
    if (which == NULL)
        bucket->counts = value == Py_True;
    else
        bucket->noted = value == Py_True;
    return 0;
}

static PyGetSetDef bucket_getset[] = {
    {"entries", get_part, set_part, NULL, &entries_part},
    {"aborts", get_part, set_part, NULL, &aborts_part},
    {"base", get_part, set_part, NULL, &base_part},
    {"short", get_short, NULL, NULL, NULL},
    {"counts", get_flag, set_flag, NULL, NULL},
    {"noted", get_flag, set_flag, NULL, "noted"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef bucket_methods[] = {
    {"__reduce__", bucket_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot bucket_slots[] = {
    {Py_tp_doc, "The accesses of a key: see emberflow.engine.loops.accesses."},
    {Py_tp_new, bucket_new},
    {Py_tp_dealloc, bucket_dealloc},
    {Py_tp_members, bucket_members},
    {Py_tp_getset, bucket_getset},
    {Py_tp_methods, bucket_methods},
    {0, NULL},
};

/* Its name is that of the twin in Python, so that each reads what the other pickled. The garbage collector does
 * not know buckets: the engine shows them to nobody, so no cycle can go through one. */
static PyType_Spec bucket_spec = {
    .name = "emberflow.engine.loops.accesses.StateBucket",
    .basicsize = sizeof(Bucket),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = bucket_slots,
};

/* Whether this is a bucket that the loops can read. */
static inline int
is_bucket(const Known *known, PyObject *given)
{
    Bucket *bucket = (Bucket *)given;
    const Open *open;

    if (!Py_IS_TYPE(given, known->bucket_type) || bucket->key == NULL || bucket->value == NULL)
        return 0;
    if (bucket->is_short)
        return 1;
    open = bucket->is.open;
    return open->entries != NULL && PyList_CheckExact(open->entries) && open->aborts != NULL
           && PyDict_Check(open->aborts) && open->base != NULL;
}

static inline int
has_aborts(const Bucket *bucket)
{
    return !bucket->is_short && PyDict_GET_SIZE(bucket->is.open->aborts);
}

static inline void
fetch_bucket(PyObject *bucket)
{
    FETCH(&((Bucket *)bucket)->is);
}

/* Fetch what buckets that are not short have apart. The buckets are on their way. */
static inline void
fetch_open(PyObject *const *buckets, int count)
{
    int i;

    for (i = 0; i < count; i++)
        if (!((Bucket *)buckets[i])->is_short)
            FETCH(((Bucket *)buckets[i])->is.open);
}

/* Fetch what the last entries of some buckets lead to. */
static void
fetch_last_of(PyObject *const *buckets, int count)
{
    PyObject *lists[AHEAD];
    int full = 0, i;

    for (i = 0; i < count; i++)
        if (((Bucket *)buckets[i])->is_short)
            FETCH(((Bucket *)buckets[i])->value);
        else
            lists[full++] = ((Bucket *)buckets[i])->is.open->entries;
    fetch_last(lists, full);
}

/* Take the next buckets from a list, and fetch what their last entries lead to: how many, AHEAD at most;
 * -1 with an exception if one is no bucket. */
static int
take_buckets(const Known *known, PyObject *given, Py_ssize_t position, PyObject **buckets)
{
    int count = 0, i;

    for (; count < AHEAD && position + count < PyList_GET_SIZE(given); count++) {
        buckets[count] = PyList_GET_ITEM(given, position + count);
        fetch_bucket(buckets[count]);
    }
    for (i = 0; i < count && Py_IS_TYPE(buckets[i], known->bucket_type); i++)
        continue;
    fetch_open(buckets, i);
    for (i = 0; i < count; i++)
        if (!is_bucket(known, buckets[i])) {
            PyErr_Format(PyExc_TypeError, "argument 1 (`given`) must hold buckets at %zd, got %R",
                         position + i, buckets[i]);
            return -1;
        }
    fetch_last_of(buckets, count);
    return count;
}

/* prepare(Row, NO_ABORTS, At, (RESULT,), (COMMITTED,), (OUTPUT,)) */
static PyObject *
prepare(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {
        {"row", A_TYPE},     {"no_aborts", A_DICT},  {"at", A_TYPE},
        {"result", A_TUPLE}, {"committed", A_TUPLE}, {"output", A_TUPLE},
    };
    Known *known = known_of(module);
    PyObject *row;

    if (CHECK_ARGUMENTS("prepare", parameters))
        return NULL;
    row = row_argument(0, args[0]);
    if (row == NULL)
        return NULL;
    Py_XSETREF(known->row, row);
    Py_XSETREF(known->no_aborts, Py_NewRef(args[1]));
    Py_XSETREF(known->at, Py_NewRef(args[2]));
    Py_XSETREF(known->result, Py_NewRef(args[3]));
    Py_XSETREF(known->committed, Py_NewRef(args[4]));
    Py_XSETREF(known->output, Py_NewRef(args[5]));
    Py_RETURN_NONE;
}

typedef struct {
    PyObject *function, *check, *number;
    int alone, silent, tells_yes, tells_value, sees_payload;
    Py_ssize_t vote, result, committed, output;
} Use;

/* Read an `accesses.Use`, in the order of its fields: 0, or -1 with an exception. */
static int
use_of(PyObject *given, Use *use, Py_ssize_t ports)
{
    Py_ssize_t *port[] = {&use->vote, &use->result, &use->committed, &use->output};
    int i;

    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) < 15) {
        PyErr_Format(PyExc_TypeError,
                     "access_in_order: argument 5 (`uses`) must hold named tuples `Use`, got %R", given);
        return -1;
    }
    use->function = PyTuple_GET_ITEM(given, 0);
    use->check = PyTuple_GET_ITEM(given, 1);
    use->alone = PyTuple_GET_ITEM(given, 2) == Py_True;
    use->silent = PyTuple_GET_ITEM(given, 3) == Py_True;
    use->tells_yes = PyTuple_GET_ITEM(given, 4) == Py_True;
    use->tells_value = PyTuple_GET_ITEM(given, 5) == Py_True;
    use->number = PyTuple_GET_ITEM(given, 6);
    use->sees_payload = PyTuple_GET_ITEM(given, 14) == Py_True;
    for (i = 0; i < 4; i++) {
        *port[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(given, 7 + i));
        if (*port[i] == -1 && PyErr_Occurred())
            return -1;
        if (*port[i] < -1 || *port[i] >= ports) {
            PyErr_Format(PyExc_ValueError,
                         "access_in_order: argument 5 (`uses`) has an access that sends to port %zd, and "
                         "there are %zd outputs",
                         *port[i], ports);
            return -1;
        }
    }
    return 0;
}

/* Append (place[:length] + suffix, mark, payload) to a list; the payload is given away. */
static int
send(PyObject *list, PyObject *place, Py_ssize_t length, PyObject *suffix, PyObject *mark,
     PyObject *payload)
{
    PyObject *own, *item = NULL;

    if (payload == NULL)
        return -1;
    own = suffix == NULL ? Py_NewRef(place) : concatenated(place, length, suffix);
    if (own != NULL) {
        item = item_of(own, mark, payload);
        Py_DECREF(own);
    }
    Py_DECREF(payload);
    return append_made(list, item);
}

/* `accesses.tell`. */
static int
tell(const Known *known, const Use *use, PyObject *item, Py_ssize_t length, PyObject *value, PyObject *outputs)
{
    PyObject *place = PLACE(item), *mark = MARK(item), *payload = PyTuple_GET_ITEM(PAYLOAD(item), 3);
    Py_ssize_t all = PyTuple_GET_SIZE(place);

    if (use->alone) {
        if (use->committed >= 0
            && send(PyList_GET_ITEM(outputs, use->committed), place, length, known->committed, mark,
                    Py_NewRef(PyTuple_GET_ITEM(payload, 0))))
            return -1;
        if (use->output >= 0
            && send(PyList_GET_ITEM(outputs, use->output), place, length, known->output, mark,
                    PyTuple_Pack(2, PyTuple_GET_ITEM(payload, 1), value)))
            return -1;
        return 0;
    }
    if (use->vote >= 0 && use->tells_yes) {
        PyObject *identity = PyTuple_GetSlice(place, 0, length);
        PyObject *vote = identity == NULL
                             ? NULL
                             : PyTuple_Pack(5, identity, use->number,
                                            PyTuple_GET_ITEM(PAYLOAD(item), 0), Py_None,
                                            use->tells_value ? value : Py_None);
        Py_XDECREF(identity);
        if (send(PyList_GET_ITEM(outputs, use->vote), place, all, NULL, mark, vote))
            return -1;
    }
    if (use->result >= 0
        && send(PyList_GET_ITEM(outputs, use->result), place, all, known->result, mark,
                PyTuple_Pack(2, payload, value)))
        return -1;
    return 0;
}

/* What an access leaves, a new reference; NULL if it does not hold or fails. */
static PyObject *
value_left(const Known *known, const Use *use, PyObject *before, PyObject *payload)
{
    PyObject *value, *own = use->alone ? PyTuple_GET_ITEM(payload, 1) : payload;

    if (use->function == Py_None) {
        value = Py_NewRef(before);
    }
    else {
        PyObject *stack[3] = {NULL, before, own};
        value = PyObject_Vectorcall(use->function, stack + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                    NULL);
    }
    if (value != NULL && use->check != Py_None) {
        PyObject *stack[3] = {NULL, value, own};
        size_t given = use->sees_payload ? 2 : 1;
        PyObject *held = PyObject_Vectorcall(use->check, stack + 1,
                                             given | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        int holds = held == NULL ? -1 : PyObject_IsTrue(held);
        Py_XDECREF(held);
        if (holds <= 0)
            Py_CLEAR(value);
    }
    if (value != NULL && (PyObject *)Py_TYPE(value) == known->at)
        Py_CLEAR(value);
    return value;
}

/* Whether a set holds a key: 1, 0, or -1 with an exception. */
static inline int
holds(PyObject *set, PyObject *key)
{
    return PySet_GET_SIZE(set) ? PySet_Contains(set, key) : 0;
}

/* Whether an item is an access, (key, access, length, payload), that these loops can deal with. */
static int
is_access(PyObject *item, const Use *uses, Py_ssize_t uses_count, Py_ssize_t *access)
{
    PyObject *payload;
    Py_ssize_t length;

    if (!is_item(item) || is_tombstone(item))
        return 0;
    payload = PAYLOAD(item);
    if (!PyTuple_CheckExact(payload) || PyTuple_GET_SIZE(payload) != 4
        || !PyLong_CheckExact(PyTuple_GET_ITEM(payload, 1))
        || !PyLong_CheckExact(PyTuple_GET_ITEM(payload, 2)))
        return 0;
    *access = PyLong_AsSsize_t(PyTuple_GET_ITEM(payload, 1));
    length = PyLong_AsSsize_t(PyTuple_GET_ITEM(payload, 2));
    if (*access < 0 || *access >= uses_count || length < 0
        || length > PyTuple_GET_SIZE(PLACE(item)) || !PyTuple_GET_SIZE(PLACE(item)))
        return 0;
    if (uses[*access].alone) {
        PyObject *own = PyTuple_GET_ITEM(payload, 3);
        return PyTuple_CheckExact(own) && PyTuple_GET_SIZE(own) == 2;
    }
    return 1;
}

static inline void
set_member(PyObject **member, PyObject *value)
{
    Py_XSETREF(*member, Py_NewRef(value));
}

/* Whether what a bucket holds counts, was written by its last entry, and lives until a place behind it. */
static int
lives_until(const Bucket *bucket, PyObject *place, const Use *uses, Py_ssize_t uses_count, long long expires)
{
    PyObject *last = last_of(bucket->is.open->entries);
    Py_ssize_t access;

    if (!bucket->counts || !is_entry(last, ENTRY_SIZE) || !PyLong_CheckExact(ACCESS(last)))
        return 0;
    access = PyLong_AsSsize_t(ACCESS(last));
    return access >= 0 && access < uses_count && uses[access].function != Py_None
           && is_alive(PLACE(last), place, expires);
}

/* What the access ahead left, if this one is later than all that the bucket has, and the first of its
 * transaction: a new reference. NULL if it is not, perhaps with an exception. */
static PyObject *
value_ahead(Bucket *bucket, PyObject *place, const Use *uses, Py_ssize_t uses_count, long long expires)
{
    PyObject *ahead, *entries;

    if (bucket->is_short) {
        long long time, front;
        /* Of a greater time it is behind, and the first of its transaction. */
        if (moment_in(place, &time, &front) || time <= bucket->is.time)
            return NULL;
        if (expires
            && (bucket->access >= (unsigned long long)uses_count
                || uses[bucket->access].function == Py_None
                || (unsigned long long)time - (unsigned long long)bucket->is.time
                       >= (unsigned long long)expires))
            return NULL;
        return Py_NewRef(bucket->value);
    }
    entries = bucket->is.open->entries;
    if (has_aborts(bucket) || !PyList_GET_SIZE(entries))
        return NULL;
    ahead = place_at(entries, PyList_GET_SIZE(entries) - 1);
    if (ahead == NULL || is_before(ahead, place) <= 0)
        return NULL;
    /* It is the first of its transaction if it is the first of its time. */
    if (PyObject_RichCompareBool(PyTuple_GET_ITEM(ahead, 0), PyTuple_GET_ITEM(place, 0), Py_EQ))
        return NULL;
    if (expires && !lives_until(bucket, place, uses, uses_count, expires))
        return NULL;
    return Py_NewRef(bucket->counts ? bucket->value : bucket->is.open->base);
}

/* Enter an access that holds: 0, or -1 with an exception. */
static int
enter(Bucket *bucket, PyObject *item, PyObject *before, PyObject *value, PyObject *touched)
{
    PyObject *access = PAYLOAD(item);
    PyObject *entry = TUPLE_OF(PLACE(item), MARK(item), PyTuple_GET_ITEM(access, 1),
                               PyTuple_GET_ITEM(access, 2), PyTuple_GET_ITEM(access, 3), before, value,
                               Py_None);

    if (expanded(bucket)) {
        Py_XDECREF(entry);
        return -1;
    }
    if (append_made(bucket->is.open->entries, entry))
        return -1;
    set_member(&bucket->is.open->base, before);
    set_member(&bucket->value, value);
    bucket->counts = 1;
    if (bucket->noted)
        return 0;
    bucket->noted = 1;
    return PyList_Append(touched, (PyObject *)bucket);
}

/* One access: 1 if it was dealt with; 0 if Python has to, perhaps with an exception of the user's; -1 with
 * one of ours. */
static int
access_one(const Known *known, PyObject *item, Bucket *bucket, const Use *uses, Py_ssize_t uses_count,
           Py_ssize_t number, long long expires, PyObject *touched, PyObject *outputs)
{
    const Use *use = &uses[number];
    PyObject *access = PAYLOAD(item), *before, *value;
    int failed;

    before = value_ahead(bucket, PLACE(item), uses, uses_count, expires);
    if (before == NULL)
        return 0;
    value = value_left(known, use, before, PyTuple_GET_ITEM(access, 3));
    if (value == NULL || !is_bucket(known, (PyObject *)bucket)) {
        Py_XDECREF(value);
        Py_DECREF(before);
        return 0;
    }
    failed = enter(bucket, item, before, value, touched);
    if (!failed && !use->silent)
        failed = tell(known, use, item, PyLong_AsSsize_t(PyTuple_GET_ITEM(access, 2)), value, outputs);
    Py_DECREF(before);
    Py_DECREF(value);
    return failed ? -1 : 1;
}

/* Look up the buckets of the next accesses, each a new reference: how many, up to the first that Python has
 * to deal with. There may be an exception behind them. */
static int
look_up(const Known *known, PyObject *const *args, Py_ssize_t position, const Use *uses,
        Py_ssize_t uses_count, PyObject **buckets, Py_ssize_t *access)
{
    PyObject *items = args[0], *other_keys = args[6], *other_places = args[7];
    int count = 0;

    for (; count < AHEAD && position + count < PyList_GET_SIZE(items); count++) {
        PyObject *item = PyList_GET_ITEM(items, position + count), *key, *bucket;
        if (!is_access(item, uses, uses_count, &access[count]))
            break;
        key = PyTuple_GET_ITEM(PAYLOAD(item), 0);
        if (holds(other_keys, key) || holds(other_places, PLACE(item)))
            break;
        bucket = PyDict_GetItemWithError(args[3], key);
        if (bucket == NULL || !Py_IS_TYPE(bucket, known->bucket_type))
            break;
        fetch_bucket(bucket);
        buckets[count] = Py_NewRef(bucket);
    }
    return count;
}

/* Read all uses, USES_MAX at most: how many, or -1 with an exception. */
static Py_ssize_t
uses_of(PyObject *given, PyObject *outputs, Use *uses)
{
    Py_ssize_t count = PyList_GET_SIZE(given), i;

    if (count > USES_MAX)
        count = USES_MAX; /* Python deals with the others */
    if (check_members("access_in_order", 2, "outputs", outputs, A_LIST))
        return -1;
    for (i = 0; i < count; i++)
        if (use_of(PyList_GET_ITEM(given, i), &uses[i], PyList_GET_SIZE(outputs)))
            return -1;
    return count;
}

/* access_in_order(items, start, outputs, buckets, uses, touched, other_keys, other_places, expires)
 * -> position */
static PyObject *
access_in_order(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {
        {"items", A_LIST}, {"start", AN_INT},   {"outputs", A_LIST},   {"buckets", A_DICT},
        {"uses", A_LIST},  {"touched", A_LIST}, {"other_keys", A_SET}, {"other_places", A_SET},
        {"expires", ANYTHING},
    };
    const Known *known = known_of(module);
    PyObject *items, *buckets[AHEAD];
    Py_ssize_t access[AHEAD], position, uses_count;
    long long expires;
    Use uses[USES_MAX];

    if (CHECK_ARGUMENTS("access_in_order", parameters))
        return NULL;
    if (known->at == NULL)
        return unprepared("access_in_order");
    items = args[0];
    position = natural_argument("access_in_order", 1, "start", args[1]);
    uses_count = position < 0 ? -1 : uses_of(args[4], args[2], uses);
    if (uses_count < 0 || expires_argument("access_in_order", 8, args[8], &expires))
        return NULL;

    while (position < PyList_GET_SIZE(items)) {
        int count = look_up(known, args, position, uses, uses_count, buckets, access);
        int ready = 0, result = 1, i;

        if (!count)
            return stopped_at(position);
        /* What stopped it comes again, as the first one. */
        if (PyErr_Occurred()) {
            if (PyErr_ExceptionMatches(PyExc_Exception))
                PyErr_Clear();
            else
                result = -1;
        }
        fetch_open(buckets, count);
        while (ready < count && is_bucket(known, buckets[ready]))
            ready++;
        fetch_last_of(buckets, ready);
        for (i = 0; result > 0 && i < ready; i++) {
            result = access_one(known, PyList_GET_ITEM(items, position), (Bucket *)buckets[i], uses,
                                uses_count, access[i], expires, args[5], args[2]);
            if (result > 0)
                position++;
        }
        for (i = 0; i < count; i++)
            Py_DECREF(buckets[i]);
        if (result < 0)
            return NULL;
        if (!result || ready < count)
            return stopped_at(position);
    }
    return PyLong_FromSsize_t(position);
}

/* `accesses.surely_counts`: 1, 0, or -1 with an exception. The places of the entries are. */
static int
surely_counts(PyObject *entries, Py_ssize_t final, PyObject *writes)
{
    PyObject *last = entry_at(entries, final - 1), *ahead;
    Py_ssize_t access;
    int same;

    if (!is_entry(last, ENTRY_SIZE)) {
        PyErr_Format(PyExc_TypeError, "entry %zd of a bucket must be a tuple of %d, got %R", final - 1,
                     ENTRY_SIZE, last);
        return -1;
    }
    if (FAILED(last) != Py_None)
        return 0;
    access = PyLong_AsSsize_t(ACCESS(last));
    if (access < 0 || access >= PyTuple_GET_SIZE(writes)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_IndexError, "an entry of access %zd, and there are %zd", access,
                         PyTuple_GET_SIZE(writes));
        return -1;
    }
    if (PyTuple_GET_ITEM(writes, access) != Py_True)
        return 0;
    if (final == 1)
        return 1;
    ahead = place_at(entries, final - 2);
    if (ahead == NULL)
        return -1;
    same = PyObject_RichCompareBool(PyTuple_GET_ITEM(ahead, 0), PyTuple_GET_ITEM(PLACE(last), 0), Py_EQ);
    return same < 0 ? -1 : !same;
}

/* `accesses.settled`: a version that nothing can change any more, without what it was made of. */
static PyObject *
settled(PyObject *entry)
{
    PyObject *place = unseen(PyTuple_GetSlice(PLACE(entry), 0, 2)), *made = NULL;
    PyObject *mark = place == NULL ? NULL : PyLong_FromLong(0);
    PyObject *length = mark == NULL ? NULL : PyLong_FromLong(2);

    if (length != NULL)
        made = TUPLE_OF(place, mark, ACCESS(entry), length, Py_None, Py_None, VALUE(entry), Py_None);
    Py_XDECREF(place);
    Py_XDECREF(mark);
    Py_XDECREF(length);
    return made;
}

/* Keep of the first entries the last one, settled: 0, or -1 with an exception. */
static int
keep_last(PyObject *entries, Py_ssize_t final)
{
    PyObject *last = settled(entry_at(entries, final - 1));

    if (last == NULL || PyList_SetItem(entries, final - 1, last))
        return -1;
    return drop_first(entries, final - 1);
}

/* Trim one: 1, 0 if Python has to, -1 with an exception. */
static int
trim_one(Bucket *bucket, PyObject *minimal, PyObject *writes, PyObject *stays)
{
    PyObject *entries;
    Py_ssize_t final;
    int result;

    if (bucket->is_short) { /* it was in the list twice */
        bucket->noted = 0;
        return 1;
    }
    entries = bucket->is.open->entries;
    if (has_aborts(bucket) || !PyList_GET_SIZE(entries))
        return 0;
    final = below(entries, minimal);
    if (final < 0)
        return -1;
    if (final < 2 && final < PyList_GET_SIZE(entries))
        /* of the final versions the last is enough, and it is the only one */
        return PyList_Append(stays, (PyObject *)bucket) ? -1 : 1;
    result = surely_counts(entries, final, writes);
    if (result <= 0)
        return result;
    if (final == PyList_GET_SIZE(entries) && shortened(bucket, entry_at(entries, final - 1)))
        return 1;
    if (keep_last(entries, final))
        return -1;
    if (PyList_GET_SIZE(entries) > 1)
        return PyList_Append(stays, (PyObject *)bucket) ? -1 : 1;
    set_member(&bucket->is.open->base, Py_None);
    set_member(&bucket->value, VALUE(entry_at(entries, 0)));
    bucket->counts = 1;
    bucket->noted = 0;
    return 1;
}

/* trim_accesses(given, minimal, writes, stays, begun) -> (others, unnoted) */
static PyObject *
trim_accesses(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {
        {"given", A_LIST}, {"minimal", A_MOMENT}, {"writes", A_TUPLE},
        {"stays", A_LIST}, {"begun", A_MOMENT},
    };
    const Known *known = known_of(module);
    PyObject *given, *others, *unnoted, *buckets[AHEAD];
    Py_ssize_t position = 0;

    if (CHECK_ARGUMENTS("trim_accesses", parameters))
        return NULL;
    given = args[0];
    if (given == args[3]) {
        PyErr_SetString(PyExc_ValueError,
                        "trim_accesses: argument 4 (`stays`) must be another list than argument 1 "
                        "(`given`)");
        return NULL;
    }
    others = PyList_New(0);
    unnoted = PyList_New(0);
    if (others == NULL || unnoted == NULL)
        goto failed;
    while (position < PyList_GET_SIZE(given)) {
        int count = take_buckets(known, given, position, buckets), i;
        if (count < 0)
            goto failed;
        position += count;
        for (i = 0; i < count; i++) {
            Bucket *bucket = (Bucket *)buckets[i];
            int result = 0;
            if (!bucket->is_short && PyList_GET_SIZE(bucket->is.open->entries) > 1)
                result = entry_is_before(bucket->is.open->entries, 0, args[4]);
            if (result < 0 || (result && PyList_Append(unnoted, buckets[i])))
                goto failed;
            result = trim_one(bucket, args[1], args[2], args[3]);
            if (result < 0 || (!result && PyList_Append(others, buckets[i])))
                goto failed;
        }
    }
    return Py_BuildValue("(NN)", others, unnoted);

failed:
    Py_XDECREF(others);
    Py_XDECREF(unnoted);
    return NULL;
}

/* Look at a bucket that is short: 0, or -1 with an exception. */
static int
look_at_short(const Known *known, Bucket *bucket, PyObject *const *args, Looked *looked)
{
    PyObject *place = short_place(bucket);
    int before = place == NULL ? -1 : is_before(place, args[1]);

    if (before == 0)
        before = PyList_Append(looked->going_on, (PyObject *)bucket) ? -1 : 0;
    else if (before > 0 && (before = is_before(place, args[2])) == 0)
        before = note_version(looked, known->row, args[4], (PyObject *)bucket, bucket->key, place,
                              bucket->value);
    Py_XDECREF(place);
    return before < 0 ? -1 : 0;
}

/* last_versions(given, moment, since, writes, operation, packs)
 * -> (found, rows, going on, others, packed, how many of them) */
static PyObject *
last_versions(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {
        {"given", A_LIST},   {"moment", A_MOMENT},     {"since", A_MOMENT},
        {"writes", A_TUPLE}, {"operation", ANYTHING},  {"packs", A_BOOL},
    };
    const Known *known = known_of(module);
    PyObject *given, *moment, *since, *writes, *buckets[AHEAD];
    Py_ssize_t position = 0;
    Looked looked;

    if (CHECK_ARGUMENTS("last_versions", parameters))
        return NULL;
    if (known->row == NULL)
        return unprepared("last_versions");
    given = args[0], moment = args[1], since = args[2], writes = args[3];
    if (begin_looked(&looked, args[5]))
        return NULL;
    while (position < PyList_GET_SIZE(given)) {
        int count = take_buckets(known, given, position, buckets), i;
        if (count < 0)
            goto failed;
        position += count;
        for (i = 0; i < count; i++) {
            Bucket *bucket = (Bucket *)buckets[i];
            PyObject *entries, *last;
            Py_ssize_t final;
            int result, before = 0;
            if (bucket->is_short) {
                if (look_at_short(known, bucket, args, &looked))
                    goto failed;
                continue;
            }
            entries = bucket->is.open->entries;
            final = below(entries, moment);
            if (final < 0
                || (final < PyList_GET_SIZE(entries) && PyList_Append(looked.going_on, buckets[i])))
                goto failed;
            if (!final)
                continue;
            last = entry_at(entries, final - 1);
            result = has_aborts(bucket) ? 0 : surely_counts(entries, final, writes);
            if (result > 0)
                before = is_before(PLACE(last), since);
            if (before > 0)
                continue;
            if (result < 0 || before < 0)
                goto failed;
            if (result ? note_version(&looked, known->row, args[4], buckets[i], bucket->key, PLACE(last),
                                      VALUE(last))
                       : note_row(&looked, buckets[i], Py_NewRef(Py_None)))
                goto failed;
        }
    }
    return all_looked(&looked);

failed:
    forget_looked(&looked);
    return NULL;
}

static PyMethodDef methods[] = {
    FAST(prepare),
    FAST(access_in_order),
    FAST(trim_accesses),
    FAST(last_versions),
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    Known *known = known_of(module);

    known->bucket_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &bucket_spec, NULL);
    if (known->bucket_type == NULL || PyModule_AddType(module, known->bucket_type))
        return -1;
    return add_interface(module);
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    Known *known = known_of(module);

    Py_VISIT(known->bucket_type);
    Py_VISIT(known->no_aborts);
    Py_VISIT(known->row);
    Py_VISIT(known->at);
    Py_VISIT(known->result);
    Py_VISIT(known->committed);
    Py_VISIT(known->output);
    return 0;
}

static int
clear(PyObject *module)
{
    Known *known = known_of(module);

    Py_CLEAR(known->bucket_type);
    Py_CLEAR(known->no_aborts);
    Py_CLEAR(known->row);
    Py_CLEAR(known->at);
    Py_CLEAR(known->result);
    Py_CLEAR(known->committed);
    Py_CLEAR(known->output);
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
    .m_name = "emberflow.native._versions",
    .m_doc = "See emberflow.engine.loops.accesses.",
    .m_size = sizeof(Known),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = free_known,
};

PyMODINIT_FUNC
PyInit__versions(void)
{
    return PyModuleDef_Init(&definition);
}
