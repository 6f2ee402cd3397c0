/* The trees of `emberflow.values.persistent_map`, compiled. That module says what they are, and does the same
 * where this one could not be built; tests/test_persistent_map.py holds the two to each other.
 *
 * What is guaranteed: a tree that is given stays as it is, and a new one shares all nodes with it but those on
 * the way to a key. A node is checked before it is read, because Python code may hand over any tuple. The
 * order of keys is that of Python's operators; they may run code of the user, and what they raise is passed on.
 * While they run, the caller's tree keeps all nodes alive that are looked at.
 *
 * `Versions` has the methods of a map that are called most, so that such a call costs no Python.
 */

#include "headers/arguments.h"
#include "structmember.h"

/* A node is (height, key, value, left, right, size); a tree is a node or None. */
#define KEY(node) PyTuple_GET_ITEM(node, 1)
#define VALUE(node) PyTuple_GET_ITEM(node, 2)
#define LEFT(node) PyTuple_GET_ITEM(node, 3)
#define RIGHT(node) PyTuple_GET_ITEM(node, 4)
#define NODE_SIZE 6

/* 1 if it is a node, 0 if it is None, -1 with a TypeError. */
static inline int
is_node(PyObject *tree)
{
    if (tree == Py_None)
        return 0;
    if (PyTuple_CheckExact(tree) && PyTuple_GET_SIZE(tree) == NODE_SIZE
        && PyLong_CheckExact(PyTuple_GET_ITEM(tree, 0)) && PyLong_CheckExact(PyTuple_GET_ITEM(tree, 5)))
        return 1;
    PyErr_Format(PyExc_TypeError, "a node of a persistent map must be a tuple of %d, got %R", NODE_SIZE,
                 tree);
    return -1;
}

/* One of the two counts of a tree, the height or the size; -1 with an exception. */
static inline Py_ssize_t
count_of(PyObject *tree, Py_ssize_t position)
{
    int found = is_node(tree);
    Py_ssize_t count;

    if (found <= 0)
        return found;
    count = PyLong_AsSsize_t(PyTuple_GET_ITEM(tree, position));
    if (count > 0 && count < PY_SSIZE_T_MAX / 4)
        return count;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "a node of a persistent map has height or size %zd", count);
    return -1;
}

#define HEIGHT_OF(tree) count_of(tree, 0)
#define SIZE_OF(tree) count_of(tree, 5)

/* `one OPERATOR other`: 1 or 0; -1 with an exception. Many keys are bytes, and are compared here. */
static inline int
compared(PyObject *one, PyObject *other, int operator)
{
    PyObject *found;
    int result;

    if (PyBytes_CheckExact(one) && PyBytes_CheckExact(other)) {
        Py_ssize_t here = PyBytes_GET_SIZE(one), there = PyBytes_GET_SIZE(other);
        int order = memcmp(PyBytes_AS_STRING(one), PyBytes_AS_STRING(other), here < there ? here : there);
        if (order == 0)
            order = (here > there) - (here < there);
        switch (operator) {
        case Py_EQ:
            return order == 0;
        case Py_LT:
            return order < 0;
        case Py_LE:
            return order <= 0;
        default:
            return order > 0;
        }
    }
    found = PyObject_RichCompare(one, other, operator);
    if (found == NULL)
        return -1;
    result = PyObject_IsTrue(found);
    Py_DECREF(found);
    return result;
}

/* A node of these; all of them are borrowed. */
static PyObject *
node_of(PyObject *key, PyObject *value, PyObject *left, PyObject *right)
{
    Py_ssize_t low = HEIGHT_OF(left), high = low < 0 ? -1 : HEIGHT_OF(right);
    Py_ssize_t less = high < 0 ? -1 : SIZE_OF(left), more = less < 0 ? -1 : SIZE_OF(right);
    PyObject *height, *size, *node;

    if (more < 0)
        return NULL;
    height = PyLong_FromSsize_t((high > low ? high : low) + 1);
    size = PyLong_FromSsize_t(less + more + 1);
    node = height == NULL || size == NULL ? NULL : PyTuple_New(NODE_SIZE);
    if (node == NULL) {
        Py_XDECREF(height);
        Py_XDECREF(size);
        return NULL;
    }
    PyTuple_SET_ITEM(node, 0, height);
    PyTuple_SET_ITEM(node, 1, Py_NewRef(key));
    PyTuple_SET_ITEM(node, 2, Py_NewRef(value));
    PyTuple_SET_ITEM(node, 3, Py_NewRef(left));
    PyTuple_SET_ITEM(node, 4, Py_NewRef(right));
    PyTuple_SET_ITEM(node, 5, size);
    return node;
}

/* A node of two others, with the key of `top` between them; these two are given away. */
static PyObject *
node_above(PyObject *top, PyObject *left, PyObject *right)
{
    PyObject *node = NULL;

    if (left != NULL && right != NULL)
        node = node_of(KEY(top), VALUE(top), left, right);
    Py_XDECREF(left);
    Py_XDECREF(right);
    return node;
}

/* `_balanced`: a node whose two sides may differ in height by two; all of them are borrowed. */
static PyObject *
balanced(PyObject *key, PyObject *value, PyObject *left, PyObject *right)
{
    Py_ssize_t low = HEIGHT_OF(left), high = low < 0 ? -1 : HEIGHT_OF(right);

    if (high < 0)
        return NULL;
    if (low > high + 1) {
        PyObject *outer = LEFT(left), *inner = RIGHT(left);
        Py_ssize_t of_inner = HEIGHT_OF(inner), of_outer = of_inner < 0 ? -1 : HEIGHT_OF(outer);
        if (of_outer < 0)
            return NULL;
        if (inner == Py_None || of_outer >= of_inner)
            return node_above(left, Py_NewRef(outer), node_of(key, value, inner, right));
        return node_above(inner, node_of(KEY(left), VALUE(left), outer, LEFT(inner)),
                          node_of(key, value, RIGHT(inner), right));
    }
    if (high > low + 1) {
        PyObject *inner = LEFT(right), *outer = RIGHT(right);
        Py_ssize_t of_inner = HEIGHT_OF(inner), of_outer = of_inner < 0 ? -1 : HEIGHT_OF(outer);
        if (of_outer < 0)
            return NULL;
        if (inner == Py_None || of_outer >= of_inner)
            return node_above(right, node_of(key, value, left, inner), Py_NewRef(outer));
        return node_above(inner, node_of(key, value, left, LEFT(inner)),
                          node_of(KEY(right), VALUE(right), RIGHT(inner), outer));
    }
    return node_of(key, value, left, right);
}

/* The same of the node `here`, one side of which is another one now. That one is given away; NULL if it could
 * not be made. */
static PyObject *
with_left(PyObject *here, PyObject *left)
{
    PyObject *node = left == NULL ? NULL : balanced(KEY(here), VALUE(here), left, RIGHT(here));

    Py_XDECREF(left);
    return node;
}

static PyObject *
with_right(PyObject *here, PyObject *right)
{
    PyObject *node = right == NULL ? NULL : balanced(KEY(here), VALUE(here), LEFT(here), right);

    Py_XDECREF(right);
    return node;
}

typedef PyObject *(*Change)(PyObject *tree, PyObject *key, PyObject *value);

/* Call a function for a tree below another one. Trees are low, but a tuple that somebody else made may be as
 * deep as memory allows. */
static PyObject *
below(Change change, PyObject *tree, PyObject *key, PyObject *value)
{
    PyObject *changed;

    if (Py_EnterRecursiveCall(" in a persistent map"))
        return NULL;
    changed = change(tree, key, value);
    Py_LeaveRecursiveCall();
    return changed;
}

static PyObject *
with(PyObject *tree, PyObject *key, PyObject *value)
{
    int found = is_node(tree), result;

    if (found < 0)
        return NULL;
    if (!found)
        return node_of(key, value, Py_None, Py_None);
    result = compared(key, KEY(tree), Py_EQ);
    if (result > 0)
        return node_of(key, value, LEFT(tree), RIGHT(tree));
    if (result == 0)
        result = compared(key, KEY(tree), Py_LT);
    if (result < 0)
        return NULL;
    return result ? with_left(tree, below(with, LEFT(tree), key, value))
                  : with_right(tree, below(with, RIGHT(tree), key, value));
}

/* The first node of a tree, borrowed; NULL with an exception. */
static PyObject *
first_of(PyObject *tree)
{
    while (LEFT(tree) != Py_None) {
        tree = LEFT(tree);
        if (is_node(tree) < 0)
            return NULL;
    }
    return tree;
}

static PyObject *
without_first(PyObject *tree, PyObject *key, PyObject *value)
{
    if (is_node(tree) < 0)
        return NULL;
    return LEFT(tree) == Py_None ? Py_NewRef(RIGHT(tree))
                                 : with_left(tree, below(without_first, LEFT(tree), key, value));
}

static PyObject *
without(PyObject *tree, PyObject *key, PyObject *value)
{
    int found = is_node(tree), result;
    PyObject *first, *rest, *node;

    if (found < 0)
        return NULL;
    if (!found)
        return Py_NewRef(Py_None);
    result = compared(key, KEY(tree), Py_LT);
    if (result > 0)
        return with_left(tree, below(without, LEFT(tree), key, value));
    if (result == 0)
        result = compared(key, KEY(tree), Py_GT);
    if (result > 0)
        return with_right(tree, below(without, RIGHT(tree), key, value));
    found = result < 0 ? -1 : is_node(RIGHT(tree));
    if (found < 0)
        return NULL;
    if (!found)
        return Py_NewRef(LEFT(tree));
    first = first_of(RIGHT(tree));
    rest = first == NULL ? NULL : without_first(RIGHT(tree), key, value);
    if (rest == NULL)
        return NULL;
    node = balanced(KEY(first), VALUE(first), LEFT(tree), rest);
    Py_DECREF(rest);
    return node;
}

/* `_joined`: a node whose left side may be lower than the right one by any height; all of them are borrowed. */
static PyObject *
joined(PyObject *top, PyObject *left, PyObject *right)
{
    Py_ssize_t low = HEIGHT_OF(left), high = low < 0 ? -1 : HEIGHT_OF(right);
    PyObject *side, *node;

    if (high < 0)
        return NULL;
    if (right == Py_None || low >= high - 1)
        return node_of(KEY(top), VALUE(top), left, right);
    if (Py_EnterRecursiveCall(" in a persistent map"))
        return NULL;
    side = joined(top, left, LEFT(right));
    Py_LeaveRecursiveCall();
    if (side == NULL)
        return NULL;
    node = balanced(KEY(right), VALUE(right), side, RIGHT(right));
    Py_DECREF(side);
    return node;
}

static PyObject *
above(PyObject *tree, PyObject *key, PyObject *value)
{
    int found = is_node(tree), result;
    PyObject *left, *node;

    if (found < 0)
        return NULL;
    if (!found)
        return Py_NewRef(Py_None);
    result = compared(KEY(tree), key, Py_LE);
    if (result < 0)
        return NULL;
    if (result)
        return below(above, RIGHT(tree), key, value);
    left = below(above, LEFT(tree), key, value);
    if (left == NULL)
        return NULL;
    node = joined(tree, left, RIGHT(tree));
    Py_DECREF(left);
    return node;
}

/* with_key(tree, key, value) -> tree */
static PyObject *
with_key(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {{"tree", ANYTHING}, {"key", ANYTHING}, {"value", ANYTHING}};

    return CHECK_ARGUMENTS("with_key", parameters) ? NULL : with(args[0], args[1], args[2]);
}

static const Parameter tree_and_key[] = {{"tree", ANYTHING}, {"key", ANYTHING}};

/* without_key(tree, key) -> tree */
static PyObject *
without_key(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    return CHECK_ARGUMENTS("without_key", tree_and_key) ? NULL : without(args[0], args[1], NULL);
}

/* above_key(tree, key) -> tree */
static PyObject *
above_key(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    return CHECK_ARGUMENTS("above_key", tree_and_key) ? NULL : above(args[0], args[1], NULL);
}

/* The node of a tree that has a key, borrowed; None if there is none, NULL with an exception. */
static PyObject *
found_in(PyObject *tree, PyObject *key)
{
    while (tree != Py_None) {
        int result = is_node(tree) < 0 ? -1 : compared(KEY(tree), key, Py_EQ);
        if (result > 0)
            break;
        if (result == 0)
            result = compared(key, KEY(tree), Py_LT);
        if (result < 0)
            return NULL;
        tree = result ? LEFT(tree) : RIGHT(tree);
    }
    return tree;
}

/* node_at(tree, key) -> node or None */
static PyObject *
node_at(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    return CHECK_ARGUMENTS("node_at", tree_and_key) ? NULL : Py_XNewRef(found_in(args[0], args[1]));
}

/* `Versions`: what a map is based on. The keys of its tree may run code of the user when they are compared,
 * so a reference keeps the tree while they are. */

typedef struct {
    PyObject_HEAD
    PyObject *tree; /* NULL of one that nobody has filled yet: empty */
} Versions;

/* The tree, a new reference. */
static inline PyObject *
tree_of(PyObject *self)
{
    PyObject *tree = ((Versions *)self)->tree;
    return Py_NewRef(tree == NULL ? Py_None : tree);
}

/* Another map of the same type, of a tree that is given away; NULL if that could not be made. */
static PyObject *
version_of(PyObject *self, PyObject *tree)
{
    PyObject *version;

    if (tree == NULL)
        return NULL;
    version = Py_TYPE(self)->tp_alloc(Py_TYPE(self), 0);
    if (version == NULL)
        Py_DECREF(tree);
    else
        ((Versions *)version)->tree = tree;
    return version;
}

/* The map after a change. */
static PyObject *
changed(PyObject *self, Change change, PyObject *key, PyObject *value)
{
    PyObject *tree = tree_of(self), *other = change(tree, key, value);

    Py_DECREF(tree);
    return version_of(self, other);
}

static const Parameter key_and_value[] = {{"key", ANYTHING}, {"value", ANYTHING}};

static PyObject *
versions_set(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return CHECK_ARGUMENTS("set", key_and_value) ? NULL : changed(self, with, args[0], args[1]);
}

static PyObject *
versions_remove(PyObject *self, PyObject *key)
{
    return changed(self, without, key, NULL);
}

static PyObject *
versions_above(PyObject *self, PyObject *key)
{
    return changed(self, above, key, NULL);
}

/* Whether there is a key: 1 or 0; -1 with an exception. */
static int
versions_contain(PyObject *self, PyObject *key)
{
    PyObject *tree = tree_of(self), *node = found_in(tree, key);

    Py_DECREF(tree);
    return node == NULL ? -1 : node != Py_None;
}

static PyObject *
versions_including(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    int found = CHECK_ARGUMENTS("including", key_and_value) ? -1 : versions_contain(self, args[0]);

    if (found < 0)
        return NULL;
    return found ? Py_NewRef(self) : changed(self, with, args[0], args[1]);
}

static PyObject *
versions_get(PyObject *self, PyObject *key)
{
    PyObject *tree = tree_of(self), *node = found_in(tree, key), *value = NULL;

    if (node != NULL)
        value = Py_NewRef(node == Py_None ? Py_None : VALUE(node));
    Py_DECREF(tree);
    return value;
}

static Py_ssize_t
versions_length(PyObject *self)
{
    PyObject *tree = tree_of(self);
    Py_ssize_t size = SIZE_OF(tree);

    Py_DECREF(tree);
    return size;
}

static int
versions_are_some(PyObject *self)
{
    PyObject *tree = ((Versions *)self)->tree;
    return tree != NULL && tree != Py_None;
}

static int
versions_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Versions *)self)->tree);
    return 0;
}

static int
versions_clear(PyObject *self)
{
    Py_CLEAR(((Versions *)self)->tree);
    return 0;
}

static void
versions_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    Py_CLEAR(((Versions *)self)->tree);
    type->tp_free(self);
    Py_DECREF(type);
}

#define FAST_METHOD(name) {#name, (PyCFunction)(void (*)(void))versions_##name, METH_FASTCALL, NULL}

static PyMethodDef versions_methods[] = {
    FAST_METHOD(set),
    FAST_METHOD(including),
    {"get", versions_get, METH_O, NULL},
    {"remove", versions_remove, METH_O, NULL},
    {"above", versions_above, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef versions_members[] = {
    {"_tree", T_OBJECT, offsetof(Versions, tree), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot versions_slots[] = {
    {Py_tp_doc, "See emberflow.values.persistent_map."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_traverse, versions_traverse},
    {Py_tp_clear, versions_clear},
    {Py_tp_dealloc, versions_dealloc},
    {Py_tp_methods, versions_methods},
    {Py_tp_members, versions_members},
    {Py_sq_length, versions_length},
    {Py_sq_contains, versions_contain},
    {Py_nb_bool, versions_are_some},
    {0, NULL},
};

static PyType_Spec versions_spec = {
    .name = "emberflow.native._trees.Versions",
    .basicsize = sizeof(Versions),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = versions_slots,
};

static PyMethodDef methods[] = {
    FAST(with_key),
    FAST(without_key),
    FAST(above_key),
    FAST(node_at),
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &versions_spec, NULL);
    int failed = type == NULL || PyModule_AddType(module, (PyTypeObject *)type);

    Py_XDECREF(type);
    return failed ? -1 : add_interface(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    EACH_INTERPRETER
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "emberflow.native._trees",
    .m_doc = "See emberflow.values.persistent_map.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__trees(void)
{
    return PyModuleDef_Init(&definition);
}
