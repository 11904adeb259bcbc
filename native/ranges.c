/* The ranges that schedules enter for their actions; see record/frameworks/torch_actions.py. Here are those that need not
   be observed: their objects are of torch's own class. */

#include "plain.h"

enum { CLASS, ORIGINAL, UNSEEN, PAIRS, RECORDER, GUARD };

static PyObject *number_of_none;

/* What a call of the class needs, in one line of memory, which the training has evicted from the caches: the wrapper
   that was made last and two of its references, the number of the pair in progress, and whether the methods of stages
   certainly compute all actions. */
static struct {
    Wrapper *maker;
    PyObject *class, *original;
    Py_ssize_t open;
    int are_certain;
} current __attribute__((aligned(64))) = {.open = NONE};

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

/* Return whether a text names a single action with a micro-batch, such as PP:1F0 or PP:1SEND_F0, or none at all. */
static int is_single(PyObject *text)
{
    if (!PyUnicode_CheckExact(text) || !PyUnicode_IS_COMPACT_ASCII(text) || PyUnicode_GET_LENGTH(text) < 6)
        return 0;
    const char *begin = (const char *)PyUnicode_1BYTE_DATA(text), *last = begin + PyUnicode_GET_LENGTH(text) - 1, *at = last;
    while (at > begin && *at >= '0' && *at <= '9')
        at--;
    return at < last && begin[3] != '(' && (*at == 'F' || *at == 'B' || *at == 'I' || *at == 'W');
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
        current.open = PyLong_AsSsize_t(number);
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
    if (number_in(recorder, slots.pair) == current.open) {
        set_slot(recorder, slots.plain_in_range, Py_None);
        set_slot(recorder, slots.is_in_range, Py_False);
        set_slot(recorder, slots.pair, number_of_none);
        if (inside != NULL && inside != Py_None)
            set_slot(recorder, slots.plain, PyTuple_GET_ITEM(inside, 0));
    }
    current.open = NONE;
    Py_XDECREF(inside);
}

/* `make_range` is the vectorcall of the class of a wrapper of the kind above, so that a call of the class neither looks
   up `__new__` nor makes a tuple of its arguments. It is not inherited. */

void forget_maker(const Wrapper *wrapper)
{
    if (wrapper == current.maker)
        current.maker = NULL;
}

/* Return the object of torch for a text whose range need not be observed; NULL without an exception for others. */
static PyObject *make_unobserved(PyObject *text)
{
    Wrapper *maker = current.maker;
    if (current.open != NONE)
        leave_pair(maker);
    if (current.are_certain && is_single(text))
        return PyObject_CallOneArg(current.original, text);
    PyObject *made = make_if_in(maker, UNSEEN, text);
    if (made != NULL || PyErr_Occurred() || !is_outside(maker))
        return made;
    made = make_if_in(maker, PAIRS, text);
    if (made != NULL && enter_pair(maker) < 0)
        Py_CLEAR(made);
    return made;
}

static PyObject *make_range(PyObject *class, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    int is_usual = current.maker != NULL && class == current.class && count == 1 && names == NULL;
    PyObject *made = is_usual ? make_unobserved(args[0]) : NULL;
    if (made != NULL || PyErr_Occurred())
        return made;
    PyObject *given = positional(args, count), *named = names == NULL ? NULL : keywords_of(args + count, names);
    if (given != NULL && (named != NULL || names == NULL))
        made = PyType_Type.tp_call(class, given, named);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return made;
}

PyObject *use_maker(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *wrapper;
    int are_certain;
    if (!PyArg_ParseTuple(args, "O!p:use_maker", &Wrapper_Type, &wrapper, &are_certain))
        return NULL;
    Wrapper *maker = (Wrapper *)wrapper;
    if (maker->call != call_range)
        return PyErr_Format(PyExc_TypeError, "no maker of ranges: %R", wrapper);
    if (current.maker != maker)
        current.open = NONE;
    current.maker = maker;
    current.class = maker->refs[CLASS];
    current.original = maker->refs[ORIGINAL];
    current.are_certain = are_certain;
    ((PyTypeObject *)current.class)->tp_vectorcall = make_range;
    Py_RETURN_NONE;
}
