/* The hottest loops of a state, compiled. `accessing.py` says what each is for, and does the same
 * where this module could not be built; tests/engine/test_accessing.py holds the two to each other.
 *
 * What is guaranteed is what `_loops.c` says. Buckets are objects of a Python class with slots, which
 * `prepare` is told once and whose places in memory it looks up.
 *
 * What waits for memory is done for AHEAD buckets at once (see `_buckets.h`).
 */

#include "_buckets.h"
#include "_hashing.h"
#include "_items.h"
#include <structmember.h>

#define USES_MAX 64

/* An entry is (place, mark, access, length, payload, before, value, failed). */
#define ACCESS(entry) PyTuple_GET_ITEM(entry, 2)
#define MADE_OF 4 /* and 5: the payload, and the value before */
#define VALUE(entry) PyTuple_GET_ITEM(entry, 6)
#define FAILED(entry) PyTuple_GET_ITEM(entry, 7)
#define ENTRY_SIZE 8

typedef struct {
    PyTypeObject *bucket;
    Py_ssize_t aborts, base, counts, entries, key, noted, value;
    PyObject *at, *result, *committed, *output;
} Known;

static Known known;

#define SLOT(bucket, name) (*(PyObject **)((char *)(bucket) + known.name))

static inline void
set_slot(PyObject **slot, PyObject *value)
{
    PyObject *old = *slot;
    *slot = Py_NewRef(value);
    Py_XDECREF(old);
}

static int
slot_of(PyTypeObject *type, const char *name, Py_ssize_t *offset)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    int is_slot = found != NULL && Py_IS_TYPE(found, &PyMemberDescr_Type)
                  && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX;
    if (is_slot)
        *offset = ((PyMemberDescrObject *)found)->d_member->offset;
    else if (found != NULL)
        PyErr_Format(PyExc_TypeError, "prepare: %s has no slot %s", type->tp_name, name);
    Py_XDECREF(found);
    return is_slot ? 0 : -1;
}

/* prepare(the class of buckets, At, (RESULT,), (COMMITTED,), (OUTPUT,)) */
static PyObject *
prepare(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyTypeObject *type;

    if (nargs != 5 || !PyType_Check(args[0]) || !PyTuple_CheckExact(args[2])
        || !PyTuple_CheckExact(args[3]) || !PyTuple_CheckExact(args[4])) {
        PyErr_SetString(PyExc_TypeError, "prepare: not what it takes");
        return NULL;
    }
    type = (PyTypeObject *)args[0];
    if (slot_of(type, "aborts", &known.aborts) || slot_of(type, "base", &known.base)
        || slot_of(type, "counts", &known.counts) || slot_of(type, "entries", &known.entries)
        || slot_of(type, "key", &known.key) || slot_of(type, "noted", &known.noted)
        || slot_of(type, "value", &known.value))
        return NULL;
    /* For as long as the process lives. */
    known.bucket = (PyTypeObject *)Py_NewRef(args[0]);
    known.at = Py_NewRef(args[1]);
    known.result = Py_NewRef(args[2]);
    known.committed = Py_NewRef(args[3]);
    known.output = Py_NewRef(args[4]);
    Py_RETURN_NONE;
}

/* Whether this is a bucket whose slots are as they have to be. */
static inline int
is_bucket(PyObject *bucket)
{
    return Py_IS_TYPE(bucket, known.bucket) && SLOT(bucket, entries) != NULL
           && PyList_CheckExact(SLOT(bucket, entries)) && SLOT(bucket, aborts) != NULL
           && PyDict_Check(SLOT(bucket, aborts)) && SLOT(bucket, base) != NULL
           && SLOT(bucket, value) != NULL && SLOT(bucket, counts) != NULL
           && SLOT(bucket, noted) != NULL && SLOT(bucket, key) != NULL;
}

/* Fetch what the last entries of some buckets lead to. */
static void
fetch(PyObject *const *buckets, int count)
{
    PyObject *lists[AHEAD];
    int i;

    for (i = 0; i < count; i++)
        lists[i] = SLOT(buckets[i], entries);
    fetch_last(lists, count);
}

typedef struct {
    PyObject *function, *check, *number;
    int alone, silent, tells_yes, tells_value;
    Py_ssize_t vote, result, committed, output;
} Use;

/* The order is that of `accessing.Use`. */
static int
use_of(PyObject *given, Use *use, Py_ssize_t ports)
{
    Py_ssize_t *port[] = {&use->vote, &use->result, &use->committed, &use->output};
    int i;

    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) < 11)
        return -1;
    use->function = PyTuple_GET_ITEM(given, 0);
    use->check = PyTuple_GET_ITEM(given, 1);
    use->alone = PyTuple_GET_ITEM(given, 2) == Py_True;
    use->silent = PyTuple_GET_ITEM(given, 3) == Py_True;
    use->tells_yes = PyTuple_GET_ITEM(given, 4) == Py_True;
    use->tells_value = PyTuple_GET_ITEM(given, 5) == Py_True;
    use->number = PyTuple_GET_ITEM(given, 6);
    for (i = 0; i < 4; i++) {
        *port[i] = PyLong_AsSsize_t(PyTuple_GET_ITEM(given, 7 + i));
        if (*port[i] < -1 || *port[i] >= ports || PyErr_Occurred())
            return -1;
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

/* `accessing.tell`. */
static int
tell(const Use *use, PyObject *item, Py_ssize_t length, PyObject *value, PyObject *outputs)
{
    PyObject *place = PLACE(item), *mark = MARK(item), *payload = PyTuple_GET_ITEM(PAYLOAD(item), 3);
    Py_ssize_t all = PyTuple_GET_SIZE(place);

    if (use->alone) {
        if (use->committed >= 0
            && send(PyList_GET_ITEM(outputs, use->committed), place, length, known.committed, mark,
                    Py_NewRef(PyTuple_GET_ITEM(payload, 0))))
            return -1;
        if (use->output >= 0
            && send(PyList_GET_ITEM(outputs, use->output), place, length, known.output, mark,
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
        && send(PyList_GET_ITEM(outputs, use->result), place, all, known.result, mark,
                PyTuple_Pack(2, payload, value)))
        return -1;
    return 0;
}

/* What an access leaves, a new reference; NULL if it does not hold or fails. */
static PyObject *
value_left(const Use *use, PyObject *before, PyObject *payload)
{
    PyObject *value;

    if (use->function == Py_None) {
        value = Py_NewRef(before);
    }
    else {
        PyObject *stack[3] = {NULL, before, use->alone ? PyTuple_GET_ITEM(payload, 1) : payload};
        value = PyObject_Vectorcall(use->function, stack + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                    NULL);
    }
    if (value != NULL && use->check != Py_None) {
        PyObject *held = PyObject_CallOneArg(use->check, value);
        int holds = held == NULL ? -1 : PyObject_IsTrue(held);
        Py_XDECREF(held);
        if (holds <= 0)
            Py_CLEAR(value);
    }
    if (value != NULL && (PyObject *)Py_TYPE(value) == known.at)
        Py_CLEAR(value);
    return value;
}

/* Whether a set holds a key: 1, 0, or -1 with an exception. */
static inline int
holds(PyObject *set, PyObject *key)
{
    return PySet_GET_SIZE(set) ? PySet_Contains(set, key) : 0;
}

/* Whether it is an access, (key, access, length, payload), that can be dealt with here. */
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

/* One access: 1 if it was dealt with, 0 if it is not for here, -1 with an exception of ours. After 0
 * there may be an exception of the user's. */
static int
access_one(PyObject *item, PyObject *bucket, const Use *use, PyObject *touched, PyObject *outputs)
{
    PyObject *entries = SLOT(bucket, entries), *place = PLACE(item), *payload = PAYLOAD(item);
    PyObject *ahead, *before, *value;
    int result;

    if (!PyList_GET_SIZE(entries) || PyDict_GET_SIZE(SLOT(bucket, aborts)))
        return 0;
    ahead = PLACE(last_of(entries));
    result = is_before(ahead, place);
    if (result <= 0)
        return result;
    /* The first of its transaction, because it is the first of its time. */
    result = PyObject_RichCompareBool(PyTuple_GET_ITEM(ahead, 0), PyTuple_GET_ITEM(place, 0), Py_EQ);
    if (result)
        return result < 0 ? -1 : 0;
    before = Py_NewRef(SLOT(bucket, counts) == Py_True ? SLOT(bucket, value) : SLOT(bucket, base));
    value = value_left(use, before, PyTuple_GET_ITEM(payload, 3));
    if (value == NULL) {
        Py_DECREF(before);
        return 0;
    }
    result = append_made(
        entries, unseen(PyTuple_Pack(ENTRY_SIZE, place, MARK(item), PyTuple_GET_ITEM(payload, 1),
                                     PyTuple_GET_ITEM(payload, 2), PyTuple_GET_ITEM(payload, 3),
                                     before, value, Py_None)));
    if (!result) {
        set_slot(&SLOT(bucket, base), before);
        set_slot(&SLOT(bucket, value), value);
        set_slot(&SLOT(bucket, counts), Py_True);
        if (SLOT(bucket, noted) != Py_True) {
            set_slot(&SLOT(bucket, noted), Py_True);
            result = PyList_Append(touched, bucket);
        }
    }
    if (!result && !use->silent)
        result = tell(use, item, PyLong_AsSsize_t(PyTuple_GET_ITEM(payload, 2)), value, outputs);
    Py_DECREF(before);
    Py_DECREF(value);
    return result ? -1 : 1;
}

/* access_in_order(items, start, outputs, buckets, uses, touched, other_keys, other_places)
 * -> position */
static PyObject *
access_in_order(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *items, *outputs, *buckets, *touched, *other_keys, *other_places;
    PyObject *ahead[AHEAD];
    Py_ssize_t access[AHEAD], position, uses_count, i;
    Use uses[USES_MAX];

    if (nargs != 8 || known.bucket == NULL || !PyList_CheckExact(args[0])
        || !PyList_CheckExact(args[2]) || !PyDict_CheckExact(args[3]) || !PyList_CheckExact(args[4])
        || !PyList_CheckExact(args[5]) || !PySet_CheckExact(args[6])
        || !PySet_CheckExact(args[7])) {
        PyErr_SetString(PyExc_TypeError, "access_in_order: not what it takes");
        return NULL;
    }
    items = args[0], outputs = args[2], buckets = args[3], touched = args[5];
    other_keys = args[6], other_places = args[7];
    position = PyLong_AsSsize_t(args[1]);
    if (position < 0)
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);
    uses_count = PyList_GET_SIZE(args[4]);
    if (uses_count > USES_MAX)
        uses_count = USES_MAX; /* the others are left to Python */
    for (i = 0; i < PyList_GET_SIZE(outputs); i++)
        if (!PyList_CheckExact(PyList_GET_ITEM(outputs, i)))
            uses_count = -1;
    for (i = 0; i < uses_count; i++)
        if (use_of(PyList_GET_ITEM(args[4], i), &uses[i], PyList_GET_SIZE(outputs)))
            uses_count = -1;
    if (uses_count < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "access_in_order: uses or outputs are not such");
        return NULL;
    }

    while (position < PyList_GET_SIZE(items)) {
        int count = 0, done, result = 1;
        while (count < AHEAD && position + count < PyList_GET_SIZE(items)) {
            PyObject *item = PyList_GET_ITEM(items, position + count), *key, *bucket;
            if (!is_access(item, uses, uses_count, &access[count]))
                break;
            key = PyTuple_GET_ITEM(PAYLOAD(item), 0);
            if (holds(other_keys, key) || holds(other_places, PLACE(item)))
                break;
            bucket = PyDict_GetItemWithError(buckets, key);
            if (bucket == NULL || !Py_IS_TYPE(bucket, known.bucket))
                break;
            FETCH((char *)bucket + known.entries);
            ahead[count++] = Py_NewRef(bucket);
        }
        if (!count)
            return stopped_at(position);
        /* What stopped this is looked at again when it is the first. */
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                result = -1;
            else
                PyErr_Clear();
        }
        for (done = 0; done < count; done++)
            if (!is_bucket(ahead[done]))
                break;
        fetch(ahead, done);
        for (i = 0; result > 0 && i < done; i++) {
            result = access_one(PyList_GET_ITEM(items, position), ahead[i], &uses[access[i]],
                                touched, outputs);
            if (result > 0)
                position++;
        }
        for (i = 0; i < count; i++)
            Py_DECREF(ahead[i]);
        if (result < 0)
            return NULL;
        if (!result || done < count)
            return stopped_at(position);
    }
    return PyLong_FromSsize_t(position);
}

/* `accessing.surely_counts`: 1, 0, or -1 with an exception. */
static int
counts(PyObject *entries, Py_ssize_t final, PyObject *writes)
{
    PyObject *last = entry_at(entries, final - 1), *ahead;
    Py_ssize_t access;
    int same;

    if (FAILED(last) != Py_None)
        return 0;
    access = PyLong_AsSsize_t(ACCESS(last));
    if (access < 0 || access >= PyTuple_GET_SIZE(writes)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "an entry of an access that is not known");
        return -1;
    }
    if (PyTuple_GET_ITEM(writes, access) != Py_True)
        return 0;
    if (final == 1)
        return 1;
    ahead = entry_at(entries, final - 2);
    same = PyObject_RichCompareBool(PyTuple_GET_ITEM(PLACE(ahead), 0),
                                    PyTuple_GET_ITEM(PLACE(last), 0), Py_EQ);
    return same < 0 ? -1 : !same;
}

static int
are_buckets(PyObject *given)
{
    Py_ssize_t i;

    for (i = 0; i < PyList_GET_SIZE(given); i++)
        if (!Py_IS_TYPE(PyList_GET_ITEM(given, i), known.bucket))
            return 0;
    return 1;
}

/* Fetch some of the buckets of a list from a position on; how many. -1 if one is none. */
static int
fetch_some(PyObject *given, Py_ssize_t position)
{
    int count = 0, i;

    while (count < AHEAD && position + count < PyList_GET_SIZE(given)) {
        FETCH((char *)PyList_GET_ITEM(given, position + count) + known.entries);
        count++;
    }
    for (i = 0; i < count; i++)
        if (!is_bucket(PyList_GET_ITEM(given, position + i))) {
            PyErr_SetString(PyExc_TypeError, "not a bucket");
            return -1;
        }
    fetch(&PyList_GET_ITEM(given, position), count);
    return count;
}

/* `accessing.settled` of the first entry. */
static int
settle_first(PyObject *entries)
{
    PyObject *first = entry_at(entries, 0);
    int i;

    if (Py_REFCNT(first) != 1) { /* somebody reads it */
        PyObject *made = PyTuple_Pack(ENTRY_SIZE, PLACE(first), MARK(first), ACCESS(first),
                                      PyTuple_GET_ITEM(first, 3), Py_None, Py_None, VALUE(first),
                                      Py_None);
        return made == NULL ? -1 : PyList_SetItem(entries, 0, unseen(made));
    }
    for (i = MADE_OF; i < MADE_OF + 2; i++)
        set_slot(&PyTuple_GET_ITEM(first, i), Py_None);
    return 0;
}

/* Trim one: -1 with an exception, 0 if it is not for here. */
static int
trim_one(PyObject *bucket, PyObject *minimal, PyObject *writes, PyObject *stays)
{
    PyObject *entries = SLOT(bucket, entries);
    Py_ssize_t final;
    int result;

    if (PyDict_GET_SIZE(SLOT(bucket, aborts)) || PyList_GET_SIZE(entries) < 2)
        return 0;
    final = below(entries, minimal);
    if (final < 0)
        return -1;
    if (final < 2) /* of what is final the last version is enough */
        return PyList_Append(stays, bucket) ? -1 : 1;
    result = counts(entries, final, writes);
    if (result <= 0)
        return result;
    if (drop_first(entries, final - 1) || settle_first(entries))
        return -1;
    if (PyList_GET_SIZE(entries) > 1)
        return PyList_Append(stays, bucket) ? -1 : 1;
    set_slot(&SLOT(bucket, base), Py_None);
    set_slot(&SLOT(bucket, noted), Py_False);
    return 1;
}

/* trim_accesses(given, minimal, writes, stays, begun) -> (others, unnoted) */
static PyObject *
trim_accesses(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *given, *others, *unnoted;
    Py_ssize_t position = 0;

    if (nargs != 5 || known.bucket == NULL || !PyList_CheckExact(args[0])
        || !PyTuple_CheckExact(args[1]) || !PyTuple_CheckExact(args[2])
        || !PyList_CheckExact(args[3]) || args[0] == args[3] || !PyTuple_CheckExact(args[4])
        || !are_buckets(args[0])) {
        PyErr_SetString(PyExc_TypeError, "trim_accesses: not what it takes");
        return NULL;
    }
    given = args[0];
    others = PyList_New(0);
    unnoted = PyList_New(0);
    if (others == NULL || unnoted == NULL)
        goto failed;
    while (position < PyList_GET_SIZE(given)) {
        int some = fetch_some(given, position);
        if (some < 0)
            goto failed;
        for (; some > 0; some--, position++) {
            PyObject *bucket = PyList_GET_ITEM(given, position), *entries = SLOT(bucket, entries);
            int result = 0;
            if (PyList_GET_SIZE(entries))
                result = is_before(PLACE(entry_at(entries, 0)), args[4]);
            if (result < 0 || (result && PyList_Append(unnoted, bucket)))
                goto failed;
            result = trim_one(bucket, args[1], args[2], args[3]);
            if (result < 0 || (!result && PyList_Append(others, bucket)))
                goto failed;
        }
    }
    return Py_BuildValue("(NN)", others, unnoted);

failed:
    Py_XDECREF(others);
    Py_XDECREF(unnoted);
    return NULL;
}

/* last_versions(given, moment, since, writes, operation, Row) -> (found, rows, going on, others) */
static PyObject *
last_versions(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *given, *moment, *since, *writes;
    Py_ssize_t position = 0;
    Looked looked;

    if (nargs != 6 || known.bucket == NULL || !PyList_CheckExact(args[0])
        || !PyTuple_CheckExact(args[1]) || !PyTuple_CheckExact(args[2])
        || !PyTuple_CheckExact(args[3]) || !is_row_type(args[5])
        || !are_buckets(args[0])) {
        PyErr_SetString(PyExc_TypeError, "last_versions: not what it takes");
        return NULL;
    }
    given = args[0], moment = args[1], since = args[2], writes = args[3];
    if (begin_looked(&looked))
        return NULL;
    while (position < PyList_GET_SIZE(given)) {
        int some = fetch_some(given, position);
        if (some < 0)
            goto failed;
        for (; some > 0; some--, position++) {
            PyObject *bucket = PyList_GET_ITEM(given, position), *entries = SLOT(bucket, entries);
            PyObject *row, *last;
            Py_ssize_t final = below(entries, moment);
            int result, before = 0;
            if (final < 0
                || (final < PyList_GET_SIZE(entries) && PyList_Append(looked.going_on, bucket)))
                goto failed;
            if (!final)
                continue;
            last = entry_at(entries, final - 1);
            result = PyDict_GET_SIZE(SLOT(bucket, aborts)) ? 0 : counts(entries, final, writes);
            if (result > 0)
                before = is_before(PLACE(last), since);
            if (before > 0)
                continue;
            if (result < 0 || before < 0)
                goto failed;
            row = result ? row_of((PyTypeObject *)args[5], args[4], SLOT(bucket, key), PLACE(last),
                                  VALUE(last))
                         : Py_NewRef(Py_None);
            if (note_row(&looked, bucket, row))
                goto failed;
        }
    }
    return all_looked(&looked);

failed:
    forget_looked(&looked);
    return NULL;
}

static PyMethodDef methods[] = {
    {"prepare", (PyCFunction)(void (*)(void))prepare, METH_FASTCALL, NULL},
    {"access_in_order", (PyCFunction)(void (*)(void))access_in_order, METH_FASTCALL, NULL},
    {"trim_accesses", (PyCFunction)(void (*)(void))trim_accesses, METH_FASTCALL, NULL},
    {"last_versions", (PyCFunction)(void (*)(void))last_versions, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "emberflow.native._versions",
    .m_doc = "See emberflow.engine.loops.accesses.",
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__versions(void)
{
    return PyModuleDef_Init(&definition);
}
