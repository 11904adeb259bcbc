/* Methods of stages that compute one action, and functions that matter outside of runs only. */

#include "plain.h"

enum { RECORDER, GUARD, RING, ACTIONS, EXPECTED, POSSIBLE, CHUNKS, KINDS, KIND, PENDING };
enum { STAGE_AT, MICROBATCH_AT, IS_CERTAIN };

static PyObject *stage_index, *full_backward, *end, *leave;

int prepare_actions(void)
{
    stage_index = PyUnicode_InternFromString("stage_index");
    full_backward = PyUnicode_InternFromString("full_backward");
    end = PyUnicode_InternFromString("end");
    leave = PyUnicode_InternFromString("leave");
    return stage_index && full_backward && end && leave ? 0 : -1;
}

static int is_empty(PyObject *collection)
{
    if (PyAnySet_Check(collection))
        return PySet_GET_SIZE(collection) == 0;
    return PyTuple_Check(collection) && PyTuple_GET_SIZE(collection) == 0;
}

static int is_same(PyObject *name, PyObject *other)
{
    return PyUnicode_GET_LENGTH(name) == PyUnicode_GET_LENGTH(other) && PyUnicode_Compare(name, other) == 0;
}

/* Return the kind of an action, a borrowed reference; NULL if only the wrapper in Python can find it. */
static PyObject *kind_of(const Wrapper *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *kinds = self->refs[KINDS], *full = Py_True;
    if (kinds == Py_None)
        return self->refs[KIND];
    if (count != 2)
        return NULL;
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (name == full_backward || is_same(name, full_backward))
            full = args[count + i];
    }
    return PyBool_Check(full) ? PyDict_GetItemWithError(kinds, full) : NULL;
}

static int are_numbers(PyObject *kind, PyObject *stage, PyObject *microbatch, PyObject *chunk, Action *found)
{
    return is_int32(kind, &found->kind) && is_int32(stage, &found->stage) &&
           is_int32(microbatch, &found->microbatch) && is_int32(chunk, &found->chunk) &&
           found->kind == (uint8_t)found->kind && found->chunk == (int16_t)found->chunk;
}

/* Find the action of a plain call; there is none otherwise. Return whether the call is certainly none; -1 with an
   exception. */
static int identify(const Wrapper *self, PyObject *const *args, Py_ssize_t count, PyObject *names, Action *found)
{
    if (count <= self->numbers[STAGE_AT] || count <= self->numbers[MICROBATCH_AT])
        return 0;
    PyObject *stage = PyObject_GetAttr(args[self->numbers[STAGE_AT]], stage_index);
    if (stage == NULL)
        return -1;
    PyObject *chunk = PyDict_GetItemWithError(self->refs[CHUNKS], stage);
    int is_none = chunk == Py_None && self->numbers[IS_CERTAIN];
    if (chunk != NULL && chunk != Py_None) {
        PyObject *kind = kind_of(self, args, count, names), *microbatch = args[self->numbers[MICROBATCH_AT]];
        if (kind != NULL && are_numbers(kind, stage, microbatch, chunk, found))
            found->action = PyTuple_Pack(4, kind, stage, microbatch, chunk);
    }
    Py_DECREF(stage);
    return PyErr_Occurred() ? -1 : is_none;
}

/* End an action that has failed. The exception stays set, unless a signal handler raises another one meanwhile. */
void abandon_call(const Wrapper *self, PyObject *action)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *done = PyObject_CallMethodObjArgs(self->refs[GUARD], leave, self->refs[ACTIONS], action, NULL);
    if (done == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
        return;
    }
    Py_DECREF(done);
    PyErr_Restore(type, error, traceback);
}

/* Pass the exception that is set to the guard. Return -1 if it belongs to the training, and is set again. */
int give_to_guard(const Wrapper *self, PyObject *action)
{
    PyObject *error = take_error();
    PyObject *done = PyObject_CallMethodObjArgs(self->refs[GUARD], leave, self->refs[ACTIONS], action, error, NULL);
    Py_XDECREF(error);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Note an action of the range in progress, and set the pair of its record. Return -1 with an exception. */
static int note_in_range(const Ring *ring, PyObject *action, Record *record)
{
    int32_t pair;
    PyObject *noted = noted_in_range(ring, &pair);
    record->pair = pair; /* which is not aligned */
    return noted == Py_None ? 0 : PySet_Add(noted, action);
}

/* Record an action that ends now, in Python where it is unusual. Return -1 with an exception. */
static int record(const Wrapper *self, const Action *found, int64_t start)
{
    PyObject *recorder = self->refs[RECORDER];
    Ring *ring = (Ring *)self->refs[RING];
    int64_t end_moment = is_open(ring, recorder) ? moment_of(recorder, 0) : UNMARKED;
    Record *record = end_moment == UNMARKED ? NULL : new_record(ring, recorder, (uint8_t)found->kind);
    if (record != NULL) {
        record->start_ns = start;
        record->end_ns = end_moment;
        record->stage = found->stage;
        record->microbatch = found->microbatch;
        record->chunk = (int16_t)found->chunk;
        set_slot(recorder, slots.action, Py_None);
        if (get_slot(recorder, slots.has_actions) != Py_True)
            set_slot(recorder, slots.has_actions, Py_True);
        return is_in_range(recorder) ? note_in_range(ring, found->action, record) : 0;
    }
    forget_moment(recorder, end_moment);
    PyObject *begun = moment_object(recorder, start), *done = NULL;
    if (begun != NULL)
        done = PyObject_CallMethodObjArgs(self->refs[ACTIONS], end, found->action, begun, Py_None, NULL);
    Py_XDECREF(begun);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Call the original and record the action, whatever the original raises. */
PyObject *run_action(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names, const Action *found,
                     int64_t start)
{
    set_slot(self->refs[RECORDER], slots.action, found->action);
    int place = enter_action(found->action, start >= 0 ? start : now_ns());
    PyObject *result = pass_to(self->original, args, nargsf, names);
    fetch((Ring *)self->refs[RING], self->refs[RECORDER]);
    fetch_device(self->refs[RECORDER]);
    leave_call(place);
    if (result == NULL) {
        forget_moment(self->refs[RECORDER], start);
        abandon_call(self, found->action);
    } else if (record(self, found, start) < 0 && give_to_guard(self, found->action) < 0) {
        Py_CLEAR(result);
    }
    return result;
}

/* Return whether an action uses data whose wait was not seen. The wrapper in Python records how it arrived. */
static int uses_awaited(const Wrapper *self, const Action *found)
{
    PyObject *pending = self->refs[PENDING];
    if (pending == Py_None ||
        !is_awaited((Pending *)pending, (uint8_t)found->kind, found->stage, found->microbatch))
        return 0;
    give_to_python((Pending *)pending);
    return 1;
}

/* Leave a call to Python where the ring is closed, such as in another thread, with the data that it uses. */
static UNUSUAL PyObject *act_in_python(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    PyObject *pending = self->refs[PENDING];
    Action found = {0};
    if (pending != Py_None && ((Pending *)pending)->receives_issued.count > 0 &&
        identify(self, args, PyVectorcall_NARGS(nargsf), names, &found) >= 0 && found.action != NULL)
        uses_awaited(self, &found);
    Py_XDECREF(found.action);
    return leave_to_python(self, args, nargsf, names);
}

/* Call a method of a stage, as `stage_wrapper` in record/wrappers.py does. */
PyObject *call_action(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    PyObject *recorder = self->refs[RECORDER];
    if (is_empty(self->refs[POSSIBLE]))
        return pass_to(self->original, args, nargsf, names);
    fetch((Ring *)self->refs[RING], recorder);
    __builtin_prefetch((char *)self->refs[GUARD] + slots.is_off);
    __builtin_prefetch(self->refs[EXPECTED]);
    __builtin_prefetch(self->refs[CHUNKS]);
    if (get_slot(recorder, slots.action) != Py_None || get_slot(self->refs[GUARD], slots.is_off) != Py_False ||
        !is_empty(self->refs[EXPECTED]))
        return pass_to(self->general, args, nargsf, names);
    if (!is_open((Ring *)self->refs[RING], recorder))
        return act_in_python(self, args, nargsf, names);
    Action found = {0};
    int is_none = identify(self, args, PyVectorcall_NARGS(nargsf), names, &found);
    if (is_none < 0 && is_of_training())
        return NULL;
    if (found.action == NULL)
        return pass_to(is_none > 0 ? self->original : self->general, args, nargsf, names);
    int64_t start = uses_awaited(self, &found) ? UNMARKED : moment_of(recorder, 1);
    PyObject *result = start == UNMARKED ? pass_to(self->general, args, nargsf, names)
                                         : run_action(self, args, nargsf, names, &found, start);
    Py_DECREF(found.action);
    return result;
}

/* Call a function whose calls matter while a step is recorded, outside of the runs of a schedule. */
PyObject *call_outside_runs(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    PyObject *recorder = self->refs[RECORDER];
    __builtin_prefetch((char *)recorder + slots.is_in_run);
    __builtin_prefetch((char *)recorder + slots.enabled);
    int is_seen = get_slot(self->refs[GUARD], slots.is_off) == Py_False &&
                  get_slot(recorder, slots.is_in_run) == Py_False && get_slot(recorder, slots.enabled) == Py_True;
    return pass_to(is_seen ? self->general : self->original, args, nargsf, names);
}
