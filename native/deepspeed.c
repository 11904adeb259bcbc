/* The instructions of DeepSpeed's pipeline engine that compute or load a micro-batch; see
   record/frameworks/deepspeed_actions.py. C and Python share the numbers of the instructions of a batch, by phase. */

#include "plain.h"

enum { RECORDER, GUARD, RING, WATCH, MOVES, NUMBERS, RUNS, NAMES = RUNS, NAME, SHAPES };
enum { KIND, PHASE_AT };

#define LEAST 2 /* arguments of an instruction without a phase: the engine and the buffer */

static PyObject *stage_id, *phase_name, *buffer_id, *end, *count, *pipe_buffers, *inputs, *shape;

int prepare_deepspeed(void)
{
    static const struct {
        PyObject **name;
        const char *text;
    } TEXTS[] = {
        {&stage_id, "stage_id"}, {&phase_name, "phase"}, {&buffer_id, "buffer_id"},       {&end, "end"},
        {&count, "count"},       {&inputs, "inputs"},    {&pipe_buffers, "pipe_buffers"}, {&shape, "shape"},
    };
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        if (intern(TEXTS[i].name, 1, &TEXTS[i].text) < 0)
            return -1;
    }
    return 0;
}

/* Ask for the memory that an instruction needs, all at once. Return whether its call may be recorded here. */
int is_usual_instruction(const Wrapper *self)
{
    const Moves *moves = (Moves *)self->refs[MOVES];
    fetch_wrapper(self);
    fetch((Ring *)self->refs[RING], self->refs[RECORDER]);
    fetch_moves(moves);
    fetch_device(self->refs[RECORDER]);
    __builtin_prefetch((char *)self->refs[GUARD] + slots.is_off);
    __builtin_prefetch(self->refs[NUMBERS]);
    return get_slot(self->refs[GUARD], slots.is_off) == Py_False && moves->is_known &&
           is_open((Ring *)self->refs[RING], self->refs[RECORDER]);
}

static int is_name(PyObject *name, PyObject *wanted)
{
    return name == wanted || PyUnicode_Compare(name, wanted) == 0;
}

/* Return whether the arguments are an engine and a buffer, which are next to each other also if the latter has a
   name. */
int has_buffer_only(size_t nargsf, PyObject *names)
{
    Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
    if (names == NULL || PyTuple_GET_SIZE(names) == 0)
        return positional == LEAST;
    return positional == LEAST - 1 && PyTuple_GET_SIZE(names) == 1 && is_name(PyTuple_GET_ITEM(names, 0), buffer_id);
}

/* Return the phase of an instruction, -1 if the call is unusual. */
static int phase_of(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    if (has_buffer_only(nargsf, names))
        return 0;
    Py_ssize_t positional = PyVectorcall_NARGS(nargsf), named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (positional < 1 || positional + named != LEAST + 1)
        return -1;
    PyObject *found = self->numbers[PHASE_AT] < positional ? args[self->numbers[PHASE_AT]] : NULL;
    for (Py_ssize_t i = 0; i < named; i++) {
        if (is_name(PyTuple_GET_ITEM(names, i), phase_name))
            found = args[positional + i];
    }
    int32_t phase;
    if (found == NULL || !PyLong_CheckExact(found) || !is_int32(found, &phase))
        return -1;
    return phase == 0 || phase == 1 ? phase : -1;
}

/* Find the stage of a phase. Return -1 if it is unusual, maybe with an exception. Both stages of the engine whose batch
   is running are known. */
static int find_stage(const Moves *moves, PyObject *engine, int phase, int32_t *stage)
{
    if (engine == moves->engine) {
        *stage = moves->stages[phase];
        return 0;
    }
    PyObject *own = phase == 0 ? PyObject_GetAttr(engine, stage_id) : NULL;
    int is_known = own != NULL && PyLong_CheckExact(own) && is_int32(own, stage);
    Py_XDECREF(own);
    return is_known ? 0 : -1;
}

/* Return how many instructions of this kind and phase there were, a new reference, and count one more. Return NULL,
   without having counted it, if the number is unusual, maybe with an exception. */
static PyObject *next_number(PyObject *numbers, PyObject *phase, int32_t *number)
{
    PyObject *found = PyDict_GetItemWithError(numbers, phase);
    *number = 0;
    if (PyErr_Occurred() ||
        (found != NULL && (!PyLong_CheckExact(found) || !is_int32(found, number) || *number == INT32_MAX)))
        return NULL;
    found = found == NULL ? PyLong_FromLong(0) : Py_NewRef(found);
    PyObject *next = found == NULL ? NULL : PyLong_FromLong(*number + 1L);
    if (next == NULL || PyDict_SetItem(numbers, phase, next) < 0)
        Py_CLEAR(found);
    Py_XDECREF(next);
    return found;
}

/* Find the place of the next instruction, and count it. Return its number, a new reference; NULL if it is unusual, maybe
   with an exception. */
PyObject *next_place(const Wrapper *self, PyObject *engine, int phase, Action *found)
{
    if (find_stage((Moves *)self->refs[MOVES], engine, phase, &found->stage) < 0)
        return NULL;
    PyObject *chunk = PyLong_FromLong(phase), *number = NULL;
    if (chunk != NULL)
        number = next_number(self->refs[NUMBERS], chunk, &found->microbatch);
    Py_XDECREF(chunk);
    found->kind = (int32_t)self->numbers[KIND];
    found->chunk = phase;
    return number;
}

/* Return the tuple of an action; NULL with an exception. */
static PyObject *action_of(const Action *found, PyObject *number)
{
    PyObject *kind = PyLong_FromLong(found->kind), *stage = PyLong_FromLong(found->stage);
    PyObject *chunk = PyLong_FromLong(found->chunk), *action = NULL;
    if (kind != NULL && stage != NULL && chunk != NULL)
        action = PyTuple_Pack(4, kind, stage, number, chunk);
    Py_XDECREF(chunk);
    Py_XDECREF(stage);
    Py_XDECREF(kind);
    return action;
}

/* Call the instruction of a forward or a backward, as `timed_wrapper` does with the `Timed` of `passes`. */
PyObject *call_pass(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    PyObject *recorder = self->refs[RECORDER];
    int phase = -1;
    if (is_usual_instruction(self) && get_slot(recorder, slots.action) == Py_None) {
        PyObject *alone = get_slot(recorder, slots.alone);
        if (alone == Py_None || alone == self->refs[RUNS])
            phase = phase_of(self, args, nargsf, names);
    }
    if (phase < 0)
        return pass_to(self->general, args, nargsf, names);
    Action found = {0};
    int64_t start = moment_of(recorder, 1);
    PyObject *number = start == UNMARKED ? NULL : next_place(self, args[0], phase, &found), *result;
    if (number == NULL) {
        forget_moment(recorder, start);
        return leave_to_python(self, args, nargsf, names);
    }
    found.action = action_of(&found, number);
    Py_DECREF(number);
    if (found.action == NULL) { /* out of memory, and the instruction has been counted */
        PyErr_Clear();
        forget_moment(recorder, start);
        return pass_to(self->original, args, nargsf, names);
    }
    result = run_action(self, args, nargsf, names, &found, start);
    Py_DECREF(found.action);
    return result;
}

/* Let the method `end` of the watch record what has begun, and take the reference to `state`. Return NULL with an
   exception, or the result. */
PyObject *end_in_python(const Wrapper *self, PyObject *state, PyObject *result)
{
    PyObject *done = state == NULL ? NULL : PyObject_CallMethodObjArgs(self->refs[WATCH], end, state, result, NULL);
    if (done == NULL && give_to_guard(self, state == NULL ? Py_None : state) < 0)
        Py_CLEAR(result);
    Py_XDECREF(done);
    Py_XDECREF(state);
    return result;
}

/* The loading of a micro-batch. */

/* Return the first tensor that was loaded into a buffer, a new reference; NULL if it has an unusual form. */
static PyObject *loaded_tensor(PyObject *engine, PyObject *buffer)
{
    PyObject *buffers = PyObject_GetAttr(engine, pipe_buffers), *found = NULL;
    PyObject *loaded = buffers != NULL && PyDict_Check(buffers) ? PyDict_GetItemWithError(buffers, inputs) : NULL;
    int32_t place;
    if (loaded != NULL && PyList_CheckExact(loaded) && is_int32(buffer, &place) && place >= 0 &&
        place < PyList_GET_SIZE(loaded))
        found = PyList_GET_ITEM(loaded, place);
    if (found != NULL && PyTuple_CheckExact(found))
        found = PyTuple_GET_SIZE(found) > 0 ? PyTuple_GET_ITEM(found, 0) : NULL;
    Py_XINCREF(found);
    Py_XDECREF(buffers);
    return found;
}

/* Keep the shape of the data of a micro-batch, which is counted later. Return -1 if that is left to Python, maybe with
   an exception. The type of the values is kept with the first shape, in Python. */
static int keep_shape(const Wrapper *self, PyObject *engine, PyObject *buffer, PyObject *number)
{
    if (PyDict_GET_SIZE(self->refs[SHAPES]) == 0)
        return -1;
    PyObject *tensor = loaded_tensor(engine, buffer);
    PyObject *found = tensor == NULL ? NULL : PyObject_GetAttr(tensor, shape);
    int done = found == NULL ? -1 : PyDict_SetItem(self->refs[SHAPES], number, found);
    Py_XDECREF(found);
    Py_XDECREF(tensor);
    return done;
}

/* Record a loading that ends now. Return -1 if that is left to Python, maybe with an exception. */
static int record_load(const Wrapper *self, const Action *found, int64_t start_ns)
{
    Ring *ring = (Ring *)self->refs[RING];
    fetch(ring, self->refs[RECORDER]);
    __builtin_prefetch(self->refs[NAMES]);
    __builtin_prefetch(self->refs[SHAPES]);
    int64_t end_ns = now_ns();
    PyObject *name = PyDict_GetItemWithError(self->refs[NAMES], self->refs[NAME]);
    int32_t index;
    if (name == NULL || !is_int32(name, &index) || !is_open(ring, self->refs[RECORDER]))
        return -1;
    Record *record = next_record(ring, (uint8_t)found->kind);
    if (record == NULL)
        return -1;
    record->start_ns = start_ns;
    record->end_ns = end_ns;
    record->stage = found->stage;
    record->microbatch = found->microbatch;
    record->chunk = (int16_t)found->chunk;
    record->name = (uint32_t)index;
    return 0;
}

/* Record a loading, and count the data that the first stage has loaded. Return NULL with an exception, or the result. */
static PyObject *end_load(const Wrapper *self, PyObject *const *args, const Action *found, PyObject *number,
                          int64_t start_ns, PyObject *result)
{
    PyObject *done = Py_None;
    int is_recorded = record_load(self, found, start_ns) == 0;
    int is_counted = is_recorded && (found->stage != 0 || keep_shape(self, args[0], args[1], number) == 0);
    if (PyErr_Occurred() && is_of_training()) {
        Py_DECREF(result);
        return NULL;
    }
    if (!is_recorded)
        return end_in_python(self, Py_BuildValue("(OOOiL)", args[0], args[1], number, 0, (long long)start_ns), result);
    if (!is_counted)
        done = PyObject_CallMethodObjArgs(self->refs[WATCH], count, args[0], args[1], number, NULL);
    if (done == NULL && give_to_guard(self, Py_None) < 0)
        Py_CLEAR(result);
    if (!is_counted)
        Py_XDECREF(done);
    return result;
}

/* Call the instruction that loads a micro-batch, as `watched_wrapper` does with a `Load`. */
PyObject *call_load(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    if (!is_usual_instruction(self) || !has_buffer_only(nargsf, names))
        return pass_to(self->general, args, nargsf, names);
    Action found = {0};
    PyObject *number = next_place(self, args[0], 0, &found);
    if (number == NULL)
        return leave_to_python(self, args, nargsf, names);
    int64_t start_ns = now_ns();
    PyObject *result = pass_to(self->original, args, nargsf, names);
    if (result != NULL)
        result = end_load(self, args, &found, number, start_ns, result);
    Py_DECREF(number);
    return result;
}
