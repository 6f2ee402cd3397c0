/* What all extension modules share: the number that tells which sources they were built from, and how
 * they check their arguments.
 *
 * What is guaranteed: whoever calls a function with the wrong number or the wrong kinds of arguments gets
 * a TypeError that names the argument, and nothing is changed. The loops read their arguments with macros
 * that check nothing, so a wrong one would end the process.
 */

#ifndef EMBERFLOW_ARGUMENTS_H
#define EMBERFLOW_ARGUMENTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* `native.INTERFACE` is the same number. */
#define INTERFACE 12

/* A function that takes its arguments as an array. */
#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}

typedef enum {
    ANYTHING,
    A_LIST,
    A_TUPLE,
    A_MOMENT, /* a tuple, or a named one */
    A_DICT,
    A_SET,
    AN_INT,
    A_BOOL,
    A_TYPE,
    A_FUNCTION,
} Kind;

typedef struct {
    const char *name;
    Kind kind;
} Parameter;

/* Whether a value is of a kind. Lists, tuples, dicts and sets are exactly that: a subclass may behave
 * otherwise, which the macros would not notice. */
static inline int
is_of_kind(PyObject *value, Kind kind)
{
    switch (kind) {
    case A_LIST:
        return PyList_CheckExact(value);
    case A_TUPLE:
        return PyTuple_CheckExact(value);
    case A_MOMENT:
        return PyTuple_Check(value);
    case A_DICT:
        return PyDict_CheckExact(value);
    case A_SET:
        return PySet_CheckExact(value);
    case AN_INT:
        return PyLong_CheckExact(value);
    case A_BOOL:
        return PyBool_Check(value);
    case A_TYPE:
        return PyType_Check(value);
    case A_FUNCTION:
        return PyCallable_Check(value);
    default:
        return 1;
    }
}

static inline const char *
kind_name(Kind kind)
{
    static const char *const names[] = {
        "anything", "a list", "a tuple", "a tuple", "a dict", "a set", "an int", "a bool", "a type",
        "callable",
    };
    return names[kind];
}

/* -1 with a TypeError: argument 3 (`output`) must be a list, got tuple. */
static inline int
wrong_argument(const char *function, Py_ssize_t position, const char *name, const char *expected,
               PyObject *got)
{
    PyErr_Format(PyExc_TypeError, "%s: argument %zd (`%s`) must be %s, got %.100s", function,
                 position + 1, name, expected, Py_TYPE(got)->tp_name);
    return -1;
}

/* 0, or -1 with a TypeError. */
static inline int
check_arguments(const char *function, const Parameter *parameters, Py_ssize_t count,
                PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t i;

    if (nargs != count) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", function, count, nargs);
        return -1;
    }
    for (i = 0; i < count; i++)
        if (!is_of_kind(args[i], parameters[i].kind))
            return wrong_argument(function, i, parameters[i].name, kind_name(parameters[i].kind),
                                  args[i]);
    return 0;
}

/* The same of an array of parameters. */
#define CHECK_ARGUMENTS(function, parameters) \
    check_arguments(function, parameters, Py_ARRAY_LENGTH(parameters), args, nargs)

/* The same of the members of a list that is an argument. */
static inline int
check_members(const char *function, Py_ssize_t position, const char *name, PyObject *list, Kind kind)
{
    Py_ssize_t i;

    for (i = 0; i < PyList_GET_SIZE(list); i++)
        if (!is_of_kind(PyList_GET_ITEM(list, i), kind)) {
            PyErr_Format(PyExc_TypeError, "%s: argument %zd (`%s`) must hold %s at %zd, got %.100s",
                         function, position + 1, name, kind_name(kind), i,
                         Py_TYPE(PyList_GET_ITEM(list, i))->tp_name);
            return -1;
        }
    return 0;
}

/* An int that is an argument and not negative; -1 with an exception. */
static inline Py_ssize_t
natural_argument(const char *function, Py_ssize_t position, const char *name, PyObject *value)
{
    Py_ssize_t number = PyLong_AsSsize_t(value);

    if (number >= 0)
        return number;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "%s: argument %zd (`%s`) must not be negative, got %zd",
                     function, position + 1, name, number);
    return -1;
}

/* What every module does when it is imported. */
static int
add_interface(PyObject *module)
{
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE);
}

/* Whether one process may hold several interpreters with this module. What a module knows is in its
 * state, so each interpreter has its own. */
#if PY_VERSION_HEX >= 0x030C0000
#define EACH_INTERPRETER {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#define ONE_INTERPRETER {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#else
#define EACH_INTERPRETER
#define ONE_INTERPRETER
#endif

#endif
