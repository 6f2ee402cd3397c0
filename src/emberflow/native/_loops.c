/* The hottest loops of the engine, compiled. `loops.py` says what each is for, and does the same
 * where this module could not be built; tests/engine/test_loops.py holds the two to each other.
 *
 * What is guaranteed: a loop either deals with an item exactly as `loops.py` does, or leaves it
 * untouched and returns its position, and Python sees to it. So everything rare (a new key, an item
 * out of order, a function that raises) is written once, in Python. An Exception of a user's function
 * is dropped here, because Python calls the function again; anything else (KeyboardInterrupt) goes on.
 */

#include "_buckets.h"
#include "_hashing.h"
#include "_items.h"

#define WORKERS_REMEMBERED 64

/* reduce_in_order(items, start, output, key_of, combine, buckets, touched, out, with_key, absent,
 * refused) -> position */
static PyObject *
reduce_in_order(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *items, *output, *key_of, *combine, *buckets, *touched, *out, *absent, *refused;
    Py_ssize_t position;
    int with_key;

    if (nargs != 11 || !PyList_CheckExact(args[0]) || !PyList_CheckExact(args[2])
        || !PyDict_CheckExact(args[5]) || !PyList_CheckExact(args[6])
        || !PyTuple_CheckExact(args[7])) {
        PyErr_SetString(PyExc_TypeError, "reduce_in_order: not what it takes");
        return NULL;
    }
    items = args[0], output = args[2], key_of = args[3], combine = args[4], buckets = args[5];
    touched = args[6], out = args[7], absent = args[9], refused = args[10];
    position = PyLong_AsSsize_t(args[1]);
    with_key = PyObject_IsTrue(args[8]);
    if (position < 0 || with_key < 0)
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);

    for (; position < PyList_GET_SIZE(items); position++) {
        PyObject *item = PyList_GET_ITEM(items, position);
        PyObject *key, *versions, *last, *accumulator, *made;
        int in_order, failed;

        if (!is_item(item) || is_tombstone(item))
            return PyLong_FromSsize_t(position);
        key = PyObject_CallOneArg(key_of, PAYLOAD(item));
        if (key == NULL)
            return stopped_at(position);
        versions = PyDict_GetItemWithError(buckets, key);
        if (versions == NULL || !PyList_CheckExact(versions) || !PyList_GET_SIZE(versions)) {
            Py_DECREF(key);
            return stopped_at(position);
        }
        Py_INCREF(versions);
        last = Py_NewRef(PyList_GET_ITEM(versions, PyList_GET_SIZE(versions) - 1));
        in_order = (PyObject *)Py_TYPE(PyTuple_GET_ITEM(last, 3)) != absent
                       ? is_before(PLACE(last), PLACE(item))
                       : 0;
        accumulator = NULL;
        if (in_order > 0) {
            PyObject *stack[3] = {NULL, PyTuple_GET_ITEM(last, 3), PAYLOAD(item)};
            accumulator = PyObject_Vectorcall(combine, stack + 1,
                                              2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        }
        Py_DECREF(last);
        if (accumulator == NULL || (PyObject *)Py_TYPE(accumulator) == refused) {
            Py_XDECREF(accumulator);
            Py_DECREF(versions);
            Py_DECREF(key);
            return stopped_at(position);
        }
        failed = append_made(
            versions,
            unseen(PyTuple_Pack(4, PLACE(item), MARK(item), PAYLOAD(item), accumulator)));
        if (!failed && PyList_GET_SIZE(versions) == 2)
            failed = PyList_Append(touched, versions);
        if (!failed) {
            PyObject *sent
                = with_key ? unseen(PyTuple_Pack(2, key, accumulator)) : Py_NewRef(accumulator);
            PyObject *place
                = sent == NULL ? NULL : concatenated(PLACE(item), PyTuple_GET_SIZE(PLACE(item)), out);
            made = place == NULL ? NULL : item_of(place, MARK(item), sent);
            Py_XDECREF(place);
            Py_XDECREF(sent);
            failed = append_made(output, made);
        }
        Py_DECREF(accumulator);
        Py_DECREF(versions);
        Py_DECREF(key);
        if (failed)
            return NULL;
    }
    return PyLong_FromSsize_t(position);
}

/* spread(items, start, spread, key_of, owners, marks, hosts) -> position */
static PyObject *
spread(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *items, *lists, *key_of, *owners, *marks, *hosts;
    PyObject *known[WORKERS_REMEMBERED] = {NULL}, *known_as[WORKERS_REMEMBERED] = {NULL};
    Py_ssize_t position, workers;

    if (nargs != 7 || !PyList_CheckExact(args[0]) || !PyList_CheckExact(args[2])
        || !PyDict_CheckExact(args[4]) || !PyList_CheckExact(args[5]) || !PyList_CheckExact(args[6])
        || PyList_GET_SIZE(args[2]) != PyList_GET_SIZE(args[5])) {
        PyErr_SetString(PyExc_TypeError, "spread: not what it takes");
        return NULL;
    }
    items = args[0], lists = args[2], key_of = args[3], owners = args[4], marks = args[5];
    hosts = args[6];
    workers = PyList_GET_SIZE(lists);
    position = PyLong_AsSsize_t(args[1]);
    if (position < 0)
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);

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
        if (PyList_GET_SIZE(hosts) && hash_of_common(key, &hash)) {
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
        if (worker < WORKERS_REMEMBERED && known[worker] == MARK(item)) {
            marked = known_as[worker];
        }
        else {
            marked = PyDict_GetItemWithError(PyList_GET_ITEM(marks, worker), MARK(item));
            if (marked == NULL)
                return stopped_at(position);
            if (worker < WORKERS_REMEMBERED)
                known[worker] = MARK(item), known_as[worker] = marked;
        }
        if (append_made(PyList_GET_ITEM(lists, worker),
                        item_of(PLACE(item), marked, PAYLOAD(item))))
            return NULL;
    }
    return PyLong_FromSsize_t(position);
}

/* closer_key(report) -> int. See `transactional.closer_key`. */
static PyObject *
closer_key(PyObject *module, PyObject *report)
{
    if (PyTuple_CheckExact(report) && PyTuple_GET_SIZE(report)) {
        PyObject *identity = PyTuple_GET_ITEM(report, 0);
        if (PyTuple_Check(identity) && PyTuple_GET_SIZE(identity) >= 2) {
            int beyond = 0, beyond_too = 0;
            long long time = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(identity, 0), &beyond);
            long long front
                = PyLong_AsLongLongAndOverflow(PyTuple_GET_ITEM(identity, 1), &beyond_too);
            if (!PyErr_Occurred() && !beyond && !beyond_too) {
                uint64_t product = (uint64_t)time * 0x9E3779B97F4A7C15U;
                return PyLong_FromLong((long)(((product >> 48) + (uint64_t)front) & 0xFFF));
            }
        }
    }
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "closer_key: not a report");
    return NULL;
}

/* front_of(report) -> int. See `transactional.front_of`. */
static PyObject *
front_of(PyObject *module, PyObject *report)
{
    if (PyTuple_CheckExact(report) && PyTuple_GET_SIZE(report)) {
        PyObject *identity = PyTuple_GET_ITEM(report, 0);
        if (PyTuple_Check(identity) && PyTuple_GET_SIZE(identity) >= 2)
            return Py_NewRef(PyTuple_GET_ITEM(identity, 1));
    }
    PyErr_SetString(PyExc_TypeError, "front_of: not a report");
    return NULL;
}

/* trim_to_last(touched, minimal, begun) -> (rest, unnoted) */
static PyObject *
trim_to_last(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *touched, *minimal, *begun, *rest, *unnoted;
    Py_ssize_t position = 0;

    if (nargs != 3 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "trim_to_last: not what it takes");
        return NULL;
    }
    touched = args[0], minimal = args[1], begun = args[2];
    rest = PyList_New(0);
    unnoted = PyList_New(0);
    if (rest == NULL || unnoted == NULL)
        goto failed;
    while (position < PyList_GET_SIZE(touched)) {
        int some = some_of(touched, position);
        if (some < 0)
            goto failed;
        fetch_last(&PyList_GET_ITEM(touched, position), some);
        fetch_first(&PyList_GET_ITEM(touched, position), some);
        for (; some > 0; some--, position++) {
            PyObject *versions = PyList_GET_ITEM(touched, position);
            Py_ssize_t count = PyList_GET_SIZE(versions);
            int before;

            if (!count)
                continue;
            before = is_before(PLACE(entry_at(versions, 0)), begun);
            if (before < 0 || (before && PyList_Append(unnoted, versions)))
                goto failed;
            before = is_before(PLACE(last_of(versions)), minimal);
            if (before < 0)
                goto failed;
            if (before ? drop_first(versions, count - 1) : PyList_Append(rest, versions))
                goto failed;
        }
    }
    return Py_BuildValue("(NN)", rest, unnoted);

failed:
    Py_XDECREF(rest);
    Py_XDECREF(unnoted);
    return NULL;
}

/* The row of a version (place, mark, mapped item, accumulator); None if Python has to look at it. */
static PyObject *
row_of_version(PyObject *version, PyObject *const *args)
{
    PyObject *key_of = args[3], *operation = args[4], *absent = args[6], *restored = args[7];
    PyObject *mapped, *accumulator, *key, *row;

    mapped = PyTuple_GET_ITEM(version, 2), accumulator = PyTuple_GET_ITEM(version, 3);
    if ((PyObject *)Py_TYPE(accumulator) == absent)
        Py_RETURN_NONE;
    key = (PyObject *)Py_TYPE(mapped) == restored ? PyObject_GetAttrString(mapped, "key")
                                                   : PyObject_CallOneArg(key_of, mapped);
    if (key == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL;
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    row = row_of((PyTypeObject *)args[5], operation, key, PLACE(version), accumulator);
    Py_DECREF(key);
    return row;
}

/* last_accumulators(given, moment, since, key_of, operation, Row, absent, restored)
 * -> (found, rows, going on, others) */
static PyObject *
last_accumulators(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *given, *moment, *since;
    Py_ssize_t position = 0;
    Looked looked;

    if (nargs != 8 || !PyList_CheckExact(args[0]) || !PyTuple_CheckExact(args[1])
        || !PyTuple_CheckExact(args[2]) || !is_row_type(args[5])) {
        PyErr_SetString(PyExc_TypeError, "last_accumulators: not what it takes");
        return NULL;
    }
    given = args[0], moment = args[1], since = args[2];
    if (begin_looked(&looked))
        return NULL;
    while (position < PyList_GET_SIZE(given)) {
        int some = some_of(given, position);
        if (some < 0)
            goto failed;
        fetch_last(&PyList_GET_ITEM(given, position), some);
        for (; some > 0; some--, position++) {
            PyObject *versions = PyList_GET_ITEM(given, position), *last, *row;
            Py_ssize_t final = below(versions, moment);
            int before;

            if (final < 0
                || (final < PyList_GET_SIZE(versions) && PyList_Append(looked.going_on, versions)))
                goto failed;
            if (!final)
                continue;
            last = entry_at(versions, final - 1);
            before = is_before(PLACE(last), since);
            if (before > 0)
                continue;
            Py_INCREF(last); /* the user's function, which gives the key, might do anything */
            row = before < 0 ? NULL : row_of_version(last, args);
            Py_DECREF(last);
            if (note_row(&looked, versions, row))
                goto failed;
        }
    }
    return all_looked(&looked);

failed:
    forget_looked(&looked);
    return NULL;
}

/* Machines that keep nothing: each gives the outputs of all items, or None if something is unusual,
 * a function that raises, say. Then Python sees to all of them. */

/* After a failure: None if it is one of the user's. */
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

/* (place + child, mark, payload) as the next of a list made long enough; the payload is given away. */
static int
set_child(PyObject *list, Py_ssize_t position, PyObject *item, PyObject *child, PyObject *payload)
{
    PyObject *place = concatenated(PLACE(item), PyTuple_GET_SIZE(PLACE(item)), child);
    PyObject *made = place == NULL ? NULL : item_of(place, MARK(item), payload);
    Py_XDECREF(place);
    Py_DECREF(payload);
    if (made == NULL)
        return -1;
    PyList_SET_ITEM(list, position, made);
    return 0;
}

/* extended(items, child) -> items */
static PyObject *
extended(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *items, *output;
    Py_ssize_t i;

    if (nargs != 2 || !PyList_CheckExact(args[0]) || !PyTuple_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "extended: not what it takes");
        return NULL;
    }
    items = args[0];
    output = PyList_New(PyList_GET_SIZE(items));
    for (i = 0; output != NULL && i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        if (!is_item(item)) {
            PyErr_SetString(PyExc_TypeError, "extended: not an item");
            Py_CLEAR(output);
        }
        else if (set_child(output, i, item, args[1], Py_NewRef(PAYLOAD(item)))) {
            Py_CLEAR(output);
        }
    }
    return output;
}

/* mapped(items, function, child, at) -> items or None */
static PyObject *
mapped(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *items, *output;
    Py_ssize_t i;

    if (nargs != 4 || !PyList_CheckExact(args[0]) || !PyTuple_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "mapped: not what it takes");
        return NULL;
    }
    items = args[0];
    output = PyList_New(PyList_GET_SIZE(items));
    if (output == NULL)
        return NULL;
    for (i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        PyObject *image = is_item(item) ? PyObject_CallOneArg(args[1], PAYLOAD(item)) : NULL;
        if (image == NULL || (PyObject *)Py_TYPE(image) == args[3]) {
            Py_XDECREF(image);
            return unusual(output);
        }
        if (set_child(output, i, item, args[2], image)) {
            Py_DECREF(output);
            return NULL;
        }
    }
    return output;
}

/* kept(items, function, child) -> items or None */
static PyObject *
kept(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *items, *output;
    Py_ssize_t i;

    if (nargs != 3 || !PyList_CheckExact(args[0]) || !PyTuple_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "kept: not what it takes");
        return NULL;
    }
    items = args[0];
    output = PyList_New(0);
    if (output == NULL)
        return NULL;
    for (i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        PyObject *said = is_item(item) ? PyObject_CallOneArg(args[1], PAYLOAD(item)) : NULL;
        int stays = said == NULL ? -1 : PyObject_IsTrue(said);
        Py_XDECREF(said);
        if (stays < 0)
            return unusual(output);
        if (stays) {
            PyObject *place
                = concatenated(PLACE(item), PyTuple_GET_SIZE(PLACE(item)), args[2]);
            PyObject *made = place == NULL ? NULL : item_of(place, MARK(item), PAYLOAD(item));
            Py_XDECREF(place);
            if (append_made(output, made)) {
                Py_DECREF(output);
                return NULL;
            }
        }
    }
    return output;
}

/* flat_mapped(items, function, children, at) -> items or None */
static PyObject *
flat_mapped(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *items, *children, *output;
    Py_ssize_t i, child;

    if (nargs != 4 || !PyList_CheckExact(args[0]) || !PyTuple_CheckExact(args[2])) {
        PyErr_SetString(PyExc_TypeError, "flat_mapped: not what it takes");
        return NULL;
    }
    items = args[0], children = args[2];
    output = PyList_New(0);
    if (output == NULL)
        return NULL;
    for (i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        PyObject *images = is_item(item) ? PyObject_CallOneArg(args[1], PAYLOAD(item)) : NULL;
        if (images == NULL || (!PyTuple_CheckExact(images) && !PyList_CheckExact(images))
            || PySequence_Fast_GET_SIZE(images) > PyTuple_GET_SIZE(children)) {
            Py_XDECREF(images);
            return unusual(output);
        }
        for (child = 0; child < PySequence_Fast_GET_SIZE(images); child++) {
            PyObject *image = PySequence_Fast_GET_ITEM(images, child), *place, *made;
            if ((PyObject *)Py_TYPE(image) == args[3]) {
                Py_DECREF(images);
                return unusual(output);
            }
            place = concatenated(PLACE(item), PyTuple_GET_SIZE(PLACE(item)),
                                 PyTuple_GET_ITEM(children, child));
            made = place == NULL ? NULL : item_of(place, MARK(item), image);
            Py_XDECREF(place);
            if (append_made(output, made)) {
                Py_DECREF(images);
                Py_DECREF(output);
                return NULL;
            }
        }
        Py_DECREF(images);
    }
    return output;
}

/* accesses(items, key_of, number, depth, alone, carried) -> items or None */
static PyObject *
accesses(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *items, *output;
    Py_ssize_t depth, i;
    int alone, carried;

    if (nargs != 6 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "accesses: not what it takes");
        return NULL;
    }
    items = args[0];
    depth = PyLong_AsSsize_t(args[3]);
    alone = args[4] == Py_True, carried = args[5] == Py_True;
    if (depth < 0)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    output = PyList_New(PyList_GET_SIZE(items));
    if (output == NULL)
        return NULL;
    for (i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i), *own, *key, *length, *payload, *access, *made;
        if (!is_item(item) || PyTuple_GET_SIZE(PLACE(item)) < depth)
            return unusual(output);
        own = payload = PAYLOAD(item);
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
        length = PyLong_FromSsize_t(PyTuple_GET_SIZE(PLACE(item)) - depth);
        payload = alone && !carried ? unseen(PyTuple_Pack(2, payload, payload))
                                    : Py_NewRef(payload);
        access = length == NULL || payload == NULL
                     ? NULL
                     : unseen(PyTuple_Pack(4, key, args[2], length, payload));
        made = access == NULL ? NULL : item_of(PLACE(item), MARK(item), access);
        Py_DECREF(key);
        Py_XDECREF(length);
        Py_XDECREF(payload);
        Py_XDECREF(access);
        if (made == NULL) {
            Py_DECREF(output);
            return NULL;
        }
        PyList_SET_ITEM(output, i, made);
    }
    return output;
}

/* reports(items, depth, number) -> items */
static PyObject *
reports(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *items, *output;
    Py_ssize_t depth, i;

    depth = nargs == 3 && PyList_CheckExact(args[0]) ? PyLong_AsSsize_t(args[1]) : -1;
    if (depth < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "reports: not what it takes");
        return NULL;
    }
    items = args[0];
    output = PyList_New(PyList_GET_SIZE(items));
    for (i = 0; output != NULL && i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i), *identity, *report, *made;
        if (!is_item(item)) {
            PyErr_SetString(PyExc_TypeError, "reports: not an item");
            Py_CLEAR(output);
            break;
        }
        identity = unseen(PyTuple_GetSlice(PLACE(item), 0, PyTuple_GET_SIZE(PLACE(item)) - depth));
        report = identity == NULL ? NULL : unseen(PyTuple_Pack(3, identity, args[2], PAYLOAD(item)));
        made = report == NULL ? NULL : item_of(PLACE(item), MARK(item), report);
        Py_XDECREF(identity);
        Py_XDECREF(report);
        if (made == NULL)
            Py_CLEAR(output);
        else
            PyList_SET_ITEM(output, i, made);
    }
    return output;
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

static PyMethodDef methods[] = {
    {"hash_of_common", hash_of_common_key, METH_O, NULL},
    {"reduce_in_order", (PyCFunction)(void (*)(void))reduce_in_order, METH_FASTCALL, NULL},
    {"spread", (PyCFunction)(void (*)(void))spread, METH_FASTCALL, NULL},
    {"closer_key", closer_key, METH_O, NULL},
    {"front_of", front_of, METH_O, NULL},
    {"extended", (PyCFunction)(void (*)(void))extended, METH_FASTCALL, NULL},
    {"mapped", (PyCFunction)(void (*)(void))mapped, METH_FASTCALL, NULL},
    {"kept", (PyCFunction)(void (*)(void))kept, METH_FASTCALL, NULL},
    {"flat_mapped", (PyCFunction)(void (*)(void))flat_mapped, METH_FASTCALL, NULL},
    {"accesses", (PyCFunction)(void (*)(void))accesses, METH_FASTCALL, NULL},
    {"reports", (PyCFunction)(void (*)(void))reports, METH_FASTCALL, NULL},
    {"last_accumulators", (PyCFunction)(void (*)(void))last_accumulators, METH_FASTCALL, NULL},
    {"trim_to_last", (PyCFunction)(void (*)(void))trim_to_last, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "emberflow.native._loops",
    .m_doc = "See emberflow.engine.loops.items.",
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__loops(void)
{
    return PyModuleDef_Init(&definition);
}
