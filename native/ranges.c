/* The ranges that schedules enter for their actions; see record/frameworks/torch_actions.py. Here are those that show
   nothing, and those of overlapping actions that the methods of stages certainly compute. */

#include "plain.h"

static PyObject *name_of, *number_of_none, *no_arguments;

int prepare_ranges(void)
{
    name_of = PyUnicode_InternFromString("name");
    number_of_none = PyLong_FromLong(NONE);
    no_arguments = PyTuple_New(0);
    return name_of && number_of_none && no_arguments ? 0 : -1;
}

/* Make the range of an action, as `make` of record/frameworks/torch_actions.py does. */

enum { R_CLASS, R_ORIGINAL, R_UNSEEN, R_BRIEF };

PyObject *call_range(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    if (PyVectorcall_NARGS(nargsf) != 2 || names != NULL || args[0] != self->refs[R_CLASS] ||
        !PyUnicode_CheckExact(args[1]) || !PyAnySet_Check(self->refs[R_UNSEEN]))
        return pass_to(self->general, args, nargsf, names);
    int is_unseen = PySet_Contains(self->refs[R_UNSEEN], args[1]);
    if (is_unseen != 0)
        return is_unseen < 0 ? NULL : PyObject_CallOneArg(self->refs[R_ORIGINAL], args[1]);
    int is_brief = PyDict_Contains(self->refs[R_BRIEF], args[1]);
    if (is_brief != 0)
        return is_brief < 0 ? NULL : pass_to(self->general, args, nargsf, names);
    return PyBaseObject_Type.tp_new((PyTypeObject *)args[0], no_arguments, NULL);
}

/* The begin and the end of a range: `ActionRanges.entered` and `left`, for the range of a pair outside of others. */

enum { RECORDER, GUARD, RING, WATCH, PAIRS, OPENED };
enum { OUTSIDE = PAIRS, FACTS = 5, OUTER = FACTS - 1 };

static int is_in(PyObject *recorder, Py_ssize_t slot, PyObject *value)
{
    return get_slot(recorder, slot) == value;
}

/* Return whether nothing is unusual, and no range is in progress. */
static int is_outside(PyObject *recorder)
{
    int32_t pair;
    PyObject *plain = get_slot(recorder, slots.plain), *number = get_slot(recorder, slots.pair);
    return plain != NULL && plain != Py_None && is_in(recorder, slots.is_in_range, Py_False) &&
           is_in(recorder, slots.enabled, Py_True) && number != NULL && is_int32(number, &pair) && pair == NONE;
}

/* Do what `enter_range` of a recorder does. Return -1 with an exception. */
static int enter_pair(PyObject *recorder)
{
    int32_t last = 0;
    PyObject *before = get_slot(recorder, slots.last_pair);
    if (before == NULL || !is_int32(before, &last) || last == INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "too many pairs");
        return -1;
    }
    PyObject *number = PyLong_FromLong(last + 1), *inside = NULL;
    if (number != NULL)
        inside = PyTuple_Pack(3, get_slot(recorder, slots.plain), number, Py_None);
    if (inside != NULL) {
        set_slot(recorder, slots.plain, Py_None);
        set_slot(recorder, slots.last_pair, number);
        set_slot(recorder, slots.pair, number);
        set_slot(recorder, slots.is_in_range, Py_True);
        set_slot(recorder, slots.plain_in_range, inside);
    }
    Py_XDECREF(number);
    Py_XDECREF(inside);
    return inside == NULL ? -1 : 0;
}

/* Do what `leave_range` of a recorder does. */
static void leave_pair(PyObject *recorder)
{
    PyObject *inside = Py_XNewRef(get_slot(recorder, slots.plain_in_range));
    set_slot(recorder, slots.plain_in_range, Py_None);
    set_slot(recorder, slots.is_in_range, Py_False);
    set_slot(recorder, slots.pair, number_of_none);
    if (inside != NULL && inside != Py_None)
        set_slot(recorder, slots.plain, PyTuple_GET_ITEM(inside, 0));
    Py_XDECREF(inside);
}

/* Return the facts of the range of a pair that is known, a borrowed reference, NULL for others or with an exception. */
static PyObject *facts_of(const Wrapper *self, PyObject *range)
{
    PyObject *name = PyObject_GetAttr(range, name_of), *facts = NULL;
    if (name != NULL && PyUnicode_CheckExact(name))
        facts = PyDict_GetItemWithError(self->refs[PAIRS], name);
    Py_XDECREF(name);
    return facts;
}

PyObject *call_range_begin(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    PyObject *recorder = self->refs[RECORDER], *facts = NULL;
    fetch((Ring *)self->refs[RING], recorder);
    int is_usual = PyVectorcall_NARGS(nargsf) == 1 && names == NULL && is_in(self->refs[GUARD], slots.is_off, Py_False);
    if (is_usual && is_outside(recorder))
        facts = facts_of(self, args[0]);
    if (facts == NULL || PyObject_SetAttr(args[0], self->refs[OPENED], facts) < 0 || enter_pair(recorder) < 0)
        return leave_to_python(self, args, nargsf, names);
    PyObject *result = pass_to(self->original, args, nargsf, names);
    if (result == NULL)
        leave_pair(recorder);
    return result;
}

/* Return whether a range is that of a pair which began in C, and is marked as ended now; -1 with an exception. */
static int is_end_of_pair(const Wrapper *self, PyObject *range)
{
    PyObject *facts = PyObject_GetAttr(range, self->refs[OPENED]);
    int is_pair = facts != NULL && PyTuple_CheckExact(facts) && PyTuple_GET_SIZE(facts) == FACTS &&
                  PyTuple_GET_ITEM(facts, OUTER) == self->refs[OUTSIDE];
    Py_XDECREF(facts);
    return facts == NULL || (is_pair && PyObject_SetAttr(range, self->refs[OPENED], Py_None) < 0) ? -1 : is_pair;
}

PyObject *call_range_end(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    PyObject *recorder = self->refs[RECORDER];
    fetch((Ring *)self->refs[RING], recorder);
    int is_usual = PyVectorcall_NARGS(nargsf) > 0 && is_in_range(recorder) &&
                   is_in(self->refs[GUARD], slots.is_off, Py_False);
    if (!is_usual || is_end_of_pair(self, args[0]) <= 0)
        return leave_to_python(self, args, nargsf, names);
    leave_pair(recorder);
    return pass_to(self->original, args, nargsf, names);
}
