/* Megatron-core's forwards and backwards; see record/frameworks/megatron_actions.py. C and Python share the `places` of
   the actions that made tensors, and the forwards that are `waiting` for their backward. */

#include "plain.h"

enum { RECORDER, GUARD, RING, ACTIONS, RUNS, TRANSFERS, ARRIVALS, PLACES, WAITING, KINDS, AFTER, ACTIVITIES };
enum { KIND, TAKEN_AT, MICROBATCH_AT, CHUNK_AT, MADE_AT = MICROBATCH_AT };

static PyObject *of_forward[3], *of_backward[2];

int prepare_megatron(void)
{
    static const char *const FORWARD[] = {"input_tensor", "current_microbatch", "vp_stage"};
    static const char *const BACKWARD[] = {"output_tensor_grad", "output_tensor"};
    return intern(of_forward, 3, FORWARD) < 0 ? -1 : intern(of_backward, 2, BACKWARD);
}

static int is_container(PyObject *value)
{
    return PyList_Check(value) || PyTuple_Check(value) || PyDict_Check(value);
}

/* Return what is in a list of one, a borrowed reference, or the value itself. */
static PyObject *single(PyObject *value)
{
    return value != NULL && PyList_CheckExact(value) && PyList_GET_SIZE(value) == 1 ? PyList_GET_ITEM(value, 0) : value;
}

/* Return whether a schedule that is recorded is running, and no action is in progress. */
int is_usual(PyObject *recorder, PyObject *guard, PyObject *runs, const Transfers *transfers)
{
    PyObject *alone = get_slot(recorder, slots.alone);
    return get_slot(guard, slots.is_off) == Py_False && transfers->is_on && (alone == Py_None || alone == runs) &&
           get_slot(recorder, slots.action) == Py_None && is_open(transfers->ring, recorder);
}

/* The arrival of the tensor that an action takes. */

/* Return whether its messages can be recorded here, if there are any: their waits have ended. */
static int is_settled_here(const Wrapper *self, PyObject *taken)
{
    Transfers *transfers = (Transfers *)self->refs[TRANSFERS];
    int is_followed_in_python = PyDict_GET_SIZE(self->refs[ARRIVALS]) > 0;
    if (taken == NULL || taken == Py_None || (transfers->count == 0 && !is_followed_in_python))
        return 1;
    if (is_container(taken))
        return 0;
    for (int place = 0; place < transfers->count; place++) {
        if (transfers->tensors[place] == taken && transfers->transfers[place].message.reference != NULL &&
            is_reference_to(transfers->transfers[place].tensor, taken))
            return 0;
    }
    if (!is_followed_in_python)
        return 1;
    PyObject *key = PyLong_FromVoidPtr(taken);
    int is_known = key == NULL ? -1 : PyDict_Contains(self->refs[ARRIVALS], key);
    Py_XDECREF(key);
    return is_known == 0;
}

/* Record the messages that brought a tensor. Return -1 if they are left to Python. */
static int settle(Transfers *transfers, PyObject *taken, const Action *found)
{
    Transfer *arrived;
    while (taken != NULL && transfers->count > 0 && (arrived = find_tensor(transfers, taken)) != NULL) {
        Transfer known = *arrived;
        known.message.stage = found->stage;
        known.message.microbatch = found->microbatch;
        known.chunk = found->chunk;
        if (record_transfer(transfers, &known) < 0)
            return -1;
        PyObject *tensor;
        drop_transfer(remove_transfer(transfers, arrived, &tensor));
    }
    return 0;
}

/* Actions. */

/* Keep what an action has made. Return NULL with an exception, or the result. */
static PyObject *keep_result(const Wrapper *self, PyObject *result, PyObject *made, const Action *found,
                             PyObject *place)
{
    PyObject *done;
    if (made != NULL && !is_container(made)) {
        if (made == Py_None || keep_place((Places *)self->refs[PLACES], made, place, found) == 0)
            return result;
        if (is_of_training()) {
            Py_DECREF(result);
            return NULL;
        }
    }
    done = PyObject_CallFunctionObjArgs(self->refs[AFTER], found->action, result, NULL);
    if (done == NULL && give_to_guard(self, found->action) < 0)
        Py_CLEAR(result);
    Py_XDECREF(done);
    return result;
}

/* Note that there are actions of this kind; there are two kinds. */
static int note_kind(const Wrapper *self)
{
    if (PySet_GET_SIZE(self->refs[KINDS]) == 2)
        return 0;
    PyObject *kind = PyLong_FromSsize_t(self->numbers[KIND]);
    int done = kind == NULL ? -1 : PySet_Add(self->refs[KINDS], kind);
    Py_XDECREF(kind);
    return done;
}

static PyObject *action_of(const Wrapper *self, PyObject *place)
{
    PyObject *action = PyTuple_New(4);
    if (action == NULL)
        return NULL;
    PyTuple_SET_ITEM(action, 0, PyLong_FromSsize_t(self->numbers[KIND]));
    for (Py_ssize_t i = 0; i < 3; i++)
        PyTuple_SET_ITEM(action, i + 1, Py_NewRef(PyTuple_GET_ITEM(place, i)));
    if (PyTuple_GET_ITEM(action, 0) == NULL)
        Py_CLEAR(action);
    return action;
}

/* Leave a call to the wrapper in Python, unless a signal handler of the training has raised an exception. */
PyObject *leave_to_python(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    if (PyErr_Occurred() && is_of_training())
        return NULL;
    return pass_to(self->general, args, nargsf, names);
}

/* Ask for the memory that an action needs, all at once. Return the transfers, NULL if something is unusual. */
static Transfers *usual_transfers(const Wrapper *self)
{
    fetch_wrapper(self);
    Transfers *transfers = (Transfers *)self->refs[TRANSFERS];
    fetch_transfers(transfers);
    fetch((Ring *)self->refs[RING], self->refs[RECORDER]);
    __builtin_prefetch((char *)self->refs[GUARD] + slots.is_off);
    __builtin_prefetch(self->refs[WAITING]);
    __builtin_prefetch(self->refs[ARRIVALS]);
    __builtin_prefetch(self->refs[KINDS]);
    __builtin_prefetch(self->refs[PLACES]);
    return is_usual(self->refs[RECORDER], self->refs[GUARD], self->refs[RUNS], transfers) ? transfers : NULL;
}

/* Return the place of a forward, a new reference, and its numbers. Return NULL if it is unusual, maybe with an
   exception. Without a chunk among the arguments there is one only. */
static PyObject *place_of_forward(const Wrapper *self, PyObject *number, PyObject *chunk, Action *found)
{
    const Transfers *transfers = (Transfers *)self->refs[TRANSFERS];
    found->chunk = chunk == NULL && transfers->chunks == 1 ? 0 : NONE;
    if (number == NULL || !PyLong_CheckExact(number) || !is_int32(number, &found->microbatch) ||
        (chunk != NULL && (!PyLong_CheckExact(chunk) || !is_int32(chunk, &found->chunk))) || found->chunk < 0 ||
        found->chunk >= transfers->chunks)
        return NULL;
    found->stage = found->chunk * transfers->ranks + transfers->rank;
    PyObject *place = PyTuple_New(3);
    if (place == NULL)
        return NULL;
    PyTuple_SET_ITEM(place, 0, PyLong_FromLong(found->stage));
    PyTuple_SET_ITEM(place, 1, Py_NewRef(number));
    PyTuple_SET_ITEM(place, 2, chunk == NULL ? PyLong_FromLong(found->chunk) : Py_NewRef(chunk));
    if (PyTuple_GET_ITEM(place, 0) == NULL || PyTuple_GET_ITEM(place, 2) == NULL)
        Py_CLEAR(place);
    return place;
}

static PyObject *forward_at(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names,
                            const Action *found, PyObject *place, int64_t start)
{
    if (PyList_Append(self->refs[WAITING], place) < 0 || note_kind(self) < 0)
        PyErr_Clear(); /* out of memory */
    set_slot(self->refs[ACTIVITIES], slots.forward, place);
    PyObject *result = run_action(self, args, nargsf, names, found, start);
    if (result == NULL)
        return NULL;
    set_slot(self->refs[ACTIVITIES], slots.forward, Py_None);
    PyObject *made = result; /* older versions do not return a tuple */
    if (PyTuple_Check(result))
        made = PyTuple_GET_SIZE(result) > 0 ? PyTuple_GET_ITEM(result, 0) : NULL;
    return keep_result(self, result, single(made), found, place);
}

/* Call `forward_step`, as `timed_wrapper` does with the `Timed` of megatron_actions.py. */
PyObject *call_forward(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Wrapper *self = (Wrapper *)object;
    Transfers *transfers = usual_transfers(self);
    if (transfers == NULL)
        return pass_to(self->general, args, nargsf, names);
    CallSite site = site_of(self, names, of_forward, 3);
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *taken = single(argument(args, count, site.at[0], self->numbers[TAKEN_AT]));
    PyObject *number = argument(args, count, site.at[1], self->numbers[MICROBATCH_AT]);
    PyObject *chunk = argument(args, count, site.at[2], self->numbers[CHUNK_AT]);
    Action found = {.kind = (int32_t)self->numbers[KIND]};
    PyObject *place = is_settled_here(self, taken) ? place_of_forward(self, number, chunk, &found) : NULL, *result;
    found.action = place == NULL ? NULL : action_of(self, place);
    int64_t start = found.action == NULL ? UNMARKED : moment_of(self->refs[RECORDER], 1);
    if (start == UNMARKED || settle(transfers, taken, &found) < 0) {
        forget_moment(self->refs[RECORDER], start);
        result = leave_to_python(self, args, nargsf, names);
    } else {
        result = forward_at(self, args, nargsf, names, &found, place, start);
    }
    Py_XDECREF(place);
    Py_XDECREF(found.action);
    return result;
}

/* Remove a place from the forwards that wait for their backward, where it usually is the first. */
static int remove_place(PyObject *waiting, PyObject *place)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(waiting); i++) { /* usually the same tuple */
        if (PyList_GET_ITEM(waiting, i) == place)
            return PyList_SetSlice(waiting, i, i + 1, NULL);
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(waiting); i++) {
        int is_equal = PyObject_RichCompareBool(PyList_GET_ITEM(waiting, i), place, Py_EQ);
        if (is_equal != 0)
            return is_equal < 0 ? -1 : PyList_SetSlice(waiting, i, i + 1, NULL);
    }
    return 0;
}

/* Call `backward_step`, likewise. */
PyObject *call_backward(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Wrapper *self = (Wrapper *)object;
    Transfers *transfers = usual_transfers(self);
    if (transfers == NULL)
        return pass_to(self->general, args, nargsf, names);
    CallSite site = site_of(self, names, of_backward, 2);
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *taken = single(argument(args, count, site.at[0], self->numbers[TAKEN_AT]));
    PyObject *made = single(argument(args, count, site.at[1], self->numbers[MADE_AT]));
    Action found = {.kind = (int32_t)self->numbers[KIND]};
    PyObject *place = NULL;
    if (made != NULL && is_settled_here(self, taken))
        place = find_place((Places *)self->refs[PLACES], made, &found);
    Py_XINCREF(place);
    found.action = place == NULL ? NULL : action_of(self, place);
    PyObject *result;
    int64_t start = found.action == NULL ? UNMARKED : moment_of(self->refs[RECORDER], 1);
    if (start == UNMARKED || settle(transfers, taken, &found) < 0 || remove_place(self->refs[WAITING], place) < 0 ||
        note_kind(self) < 0) {
        forget_moment(self->refs[RECORDER], start);
        result = leave_to_python(self, args, nargsf, names);
    } else {
        result = run_action(self, args, nargsf, names, &found, start);
        if (result != NULL)
            result = keep_result(self, result, single(result), &found, place);
    }
    Py_XDECREF(place);
    Py_XDECREF(found.action);
    return result;
}
