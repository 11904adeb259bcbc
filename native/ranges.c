/* The ranges that schedules enter for their actions; see record/frameworks/torch_actions.py. Here are those that need not
   be observed: their objects are of torch's own class. */

#include "plain.h"

enum { CLASS, ORIGINAL, UNSEEN, PAIRS, RECORDER, GUARD };
enum { OPEN };

static PyObject *number_of_none;

int prepare_ranges(void)
{
    number_of_none = PyLong_FromLong(NONE);
    return number_of_none ? 0 : -1;
}

/* Return the object of torch for a text that is in one of the sets; NULL without an exception for others. */
static PyObject *make_if_in(const Wrapper *self, int set, PyObject *text)
{
    if (!PyUnicode_CheckExact(text) || !PyAnySet_Check(self->refs[set]))
        return NULL;
    int is_in = PySet_Contains(self->refs[set], text);
    return is_in > 0 ? PyObject_CallOneArg(self->refs[ORIGINAL], text) : NULL;
}

/* Make the range of an action, as `make` of record/frameworks/torch_actions.py does. */
PyObject *call_range(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    int is_usual = PyVectorcall_NARGS(nargsf) == 2 && names == NULL && args[0] == self->refs[CLASS];
    PyObject *made = is_usual ? make_if_in(self, UNSEEN, args[1]) : NULL;
    return made != NULL || PyErr_Occurred() ? made : pass_to(self->general, args, nargsf, names);
}

/* Pairs: ranges of overlapping actions that the methods of stages certainly compute. Such a range begins where its
   object is made, and ends where the next one is, or with the step: nothing is recorded between two ranges. */

static int64_t number_in(PyObject *recorder, Py_ssize_t slot)
{
    int32_t number;
    PyObject *found = get_slot(recorder, slot);
    return found != NULL && is_int32(found, &number) ? number : INT64_MAX;
}

/* Return whether nothing is unusual, and no range is in progress. */
static int is_outside(const Wrapper *self)
{
    PyObject *recorder = self->refs[RECORDER], *plain = get_slot(recorder, slots.plain);
    return plain != NULL && plain != Py_None && get_slot(self->refs[GUARD], slots.is_off) == Py_False &&
           get_slot(recorder, slots.is_in_range) == Py_False && get_slot(recorder, slots.enabled) == Py_True &&
           number_in(recorder, slots.pair) == NONE && number_in(recorder, slots.last_pair) < INT32_MAX;
}

/* Do what `enter_range` of a recorder does. Return -1 with an exception. */
static int enter_pair(Wrapper *self)
{
    PyObject *recorder = self->refs[RECORDER], *inside = NULL;
    PyObject *number = PyLong_FromLongLong(number_in(recorder, slots.last_pair) + 1);
    if (number != NULL)
        inside = PyTuple_Pack(3, get_slot(recorder, slots.plain), number, Py_None);
    if (inside != NULL) {
        self->numbers[OPEN] = PyLong_AsSsize_t(number);
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

/* Do what `leave_range` of a recorder does, unless the pair has ended. */
static void leave_pair(Wrapper *self)
{
    PyObject *recorder = self->refs[RECORDER], *inside = Py_XNewRef(get_slot(recorder, slots.plain_in_range));
    if (number_in(recorder, slots.pair) == self->numbers[OPEN]) {
        set_slot(recorder, slots.plain_in_range, Py_None);
        set_slot(recorder, slots.is_in_range, Py_False);
        set_slot(recorder, slots.pair, number_of_none);
        if (inside != NULL && inside != Py_None)
            set_slot(recorder, slots.plain, PyTuple_GET_ITEM(inside, 0));
    }
    self->numbers[OPEN] = NONE;
    Py_XDECREF(inside);
}

/* The wrapper of the kind above that was made last. `make_range` is the vectorcall of its class, so that a call of the
   class neither looks up `__new__` nor makes a tuple of its arguments. It is not inherited. */
static Wrapper *maker;

void forget_maker(const Wrapper *wrapper)
{
    if (wrapper == maker)
        maker = NULL;
}

static PyObject *make_range(PyObject *class, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *made = NULL;
    if (maker != NULL && class == maker->refs[CLASS] && count == 1 && names == NULL) {
        if (maker->numbers[OPEN] != NONE)
            leave_pair(maker);
        made = make_if_in(maker, UNSEEN, args[0]);
        if (made == NULL && !PyErr_Occurred() && is_outside(maker)) {
            made = make_if_in(maker, PAIRS, args[0]);
            if (made != NULL && enter_pair(maker) < 0)
                Py_CLEAR(made);
        }
    }
    if (made != NULL || PyErr_Occurred())
        return made;
    PyObject *given = positional(args, count), *named = names == NULL ? NULL : keywords_of(args + count, names);
    if (given != NULL && (named != NULL || names == NULL))
        made = PyType_Type.tp_call(class, given, named);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return made;
}

PyObject *use_maker(PyObject *Py_UNUSED(module), PyObject *wrapper)
{
    if (!Py_IS_TYPE(wrapper, &Wrapper_Type) || ((Wrapper *)wrapper)->call != call_range)
        return PyErr_Format(PyExc_TypeError, "no maker of ranges: %R", wrapper);
    maker = (Wrapper *)wrapper;
    ((PyTypeObject *)maker->refs[CLASS])->tp_vectorcall = make_range;
    Py_RETURN_NONE;
}
