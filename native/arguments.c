/* Arguments by name.

   All calls from one call site pass the same tuple of keyword names, or the same names where it unpacks a dict, so the
   positions found for it are cached. The cache keeps the tuple alive, so that no other tuple can have its address. */

#include "plain.h"

/* Set interned strings. Return -1 with an exception. */
int intern(PyObject **names, int count, const char *const *texts)
{
    for (int i = 0; i < count; i++) {
        names[i] = PyUnicode_InternFromString(texts[i]);
        if (names[i] == NULL)
            return -1;
    }
    return 0;
}

static int8_t place_of(PyObject *names, PyObject *wanted)
{
    Py_ssize_t count = PyTuple_GET_SIZE(names) < INT8_MAX ? PyTuple_GET_SIZE(names) : INT8_MAX;
    for (Py_ssize_t i = 0; i < count; i++) { /* usually the same string */
        if (PyTuple_GET_ITEM(names, i) == wanted)
            return (int8_t)i;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (PyUnicode_GET_LENGTH(name) == PyUnicode_GET_LENGTH(wanted) && PyUnicode_Compare(name, wanted) == 0)
            return (int8_t)i;
    }
    return NONE;
}

static int has_same_items(PyObject *names, PyObject *others)
{
    if (others == NULL || PyTuple_GET_SIZE(others) != PyTuple_GET_SIZE(names))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        if (PyTuple_GET_ITEM(names, i) != PyTuple_GET_ITEM(others, i))
            return 0;
    }
    return 1;
}

/* Return where the wanted keywords of a call are. */
CallSite site_of(Wrapper *self, PyObject *names, PyObject *const *wanted, int count)
{
    CallSite site = {.names = names, .at = {NONE, NONE, NONE, NONE, NONE, NONE}};
    if (names == NULL)
        return site;
    for (int i = 0; i < MOST_SITES; i++) {
        if (self->sites[i].names == names)
            return self->sites[i];
    }
    for (int i = 0; i < MOST_SITES; i++) {
        if (has_same_items(names, self->sites[i].names))
            return self->sites[i];
    }
    for (int i = 0; i < count; i++)
        site.at[i] = place_of(names, wanted[i]);
    PyObject *oldest = self->sites[MOST_SITES - 1].names;
    memmove(&self->sites[1], &self->sites[0], (MOST_SITES - 1) * sizeof *self->sites);
    self->sites[0] = site;
    Py_INCREF(names);
    Py_XDECREF(oldest);
    return site;
}

/* Return an argument, a borrowed reference; NULL if there is none, or if it is None. */
PyObject *argument(PyObject *const *args, Py_ssize_t count, int8_t at, Py_ssize_t position)
{
    PyObject *found = at != NONE ? args[count + at] : position < count ? args[position] : NULL;
    return found == Py_None ? NULL : found;
}
