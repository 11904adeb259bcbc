/* Records whose times a device has yet to report; see record/devices/device_timer.py, which does the same in Python.

   A moment is a number of nanoseconds, or the negative code of a mark: an event on the stream of the training, and the
   last anchor before it. Fields of a record that are times have either. `collect` replaces the marks by times of the
   host, between two anchors, as DeviceClock does (record/devices/device_clock.py). */

#include "plain.h"

#define MOST_RECORDS 4096
#define MOST_MARKS (2 * MOST_RECORDS + 256)
#define MOST_ANCHORS 64
#define MARKS_OF_CODE 65536
#define FIRST_CODE (-2) /* NONE is no code */

typedef struct {
    PyObject *event;
    int64_t anchor, since_ns;
    int uses;
    char is_located, is_lent;
} Mark;

typedef struct {
    PyObject *anchor, *event;
    int64_t device_ns, host_ns;
} Anchor;

/* `latest` counts the anchors, of which the last MOST_ANCHORS are kept. `free` are the marks that can be used. A new
   mark needs to be before `ready_until_ns`, and is left to Python as soon as the `late` anchor has happened. */
struct DeviceRecords {
    PyObject_HEAD
    Ring *ring;
    PyObject *stream_of, *device, *mark_class, *late;
    int64_t ready_until_ns, looked_ns, serial, latest, resolution_ns;
    long long dropped;
    int count, free_count, most, next_without_event;
    int free[MOST_MARKS];
    Mark marks[MOST_MARKS];
    Anchor anchors[MOST_ANCHORS];
    Record records[MOST_RECORDS];
};

static int64_t serials;

DeviceRecords *device_of(PyObject *recorder)
{
    PyObject *found = get_slot(recorder, slots.device_records);
    return found != NULL && Py_IS_TYPE(found, &DeviceRecords_Type) ? (DeviceRecords *)found : NULL;
}

void fetch_device_records(PyObject *recorder)
{
    const DeviceRecords *self = device_of(recorder);
    if (self == NULL)
        return;
    __builtin_prefetch(&self->ring);
    __builtin_prefetch(&self->count, 1);
    if (self->free_count > 0)
        __builtin_prefetch(&self->marks[self->free[self->free_count - 1]], 1);
    __builtin_prefetch(&self->records[self->count % MOST_RECORDS], 1);
}

/* Marks. */

static Mark *mark_of(DeviceRecords *self, int64_t moment)
{
    if (self == NULL || moment > FIRST_CODE)
        return NULL;
    int64_t number = FIRST_CODE - moment;
    Mark *mark = number % MARKS_OF_CODE < MOST_MARKS ? &self->marks[number % MARKS_OF_CODE] : NULL;
    return mark != NULL && number / MARKS_OF_CODE == self->serial && mark->uses > 0 ? mark : NULL;
}

/* End one use of a mark. The event of one that Python has, too, is not recorded again. */
static void free_mark(DeviceRecords *self, Mark *mark)
{
    if (mark == NULL || --mark->uses > 0)
        return;
    if (mark->is_lent)
        Py_CLEAR(mark->event);
    if (mark->event != NULL)
        self->free[self->free_count++] = (int)(mark - self->marks);
    else
        self->next_without_event = (int)(mark - self->marks);
}

/* Return the stream that is current for this thread, and whether an event can be recorded there now. */
static int find_stream(DeviceRecords *self, void **stream)
{
    int capture = 1;
    PyObject *found = PyObject_CallOneArg(self->stream_of, self->device);
    *stream = found == NULL ? NULL : PyLong_AsVoidPtr(found);
    Py_XDECREF(found);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return driver.is_capturing(*stream, &capture) == 0 && capture == 0;
}

/* Return whether the late anchor has happened. The device has not reached it before `looked_ns`. */
static int is_late_done(DeviceRecords *self)
{
    if (self->late == NULL || !Py_IS_TYPE(self->late, &Event_Type))
        return 0;
    int64_t asked_ns = now_ns();
    int done = is_done((Event *)self->late);
    if (done != 0) {
        PyErr_Clear();
        return 1;
    }
    self->looked_ns = asked_ns;
    return 0;
}

int64_t mark_moment(PyObject *recorder, int is_begin)
{
    DeviceRecords *self = device_of(recorder);
    if (self == NULL)
        return now_ns();
    void *stream;
    if (self->free_count == 0 || self->latest == 0 ||
        (is_begin && (self->count >= self->most || now_ns() >= self->ready_until_ns)) || is_late_done(self) ||
        !find_stream(self, &stream))
        return UNMARKED;
    int number = self->free[self->free_count - 1];
    Mark *mark = &self->marks[number];
    if (driver.record(((Event *)mark->event)->handle, stream) != 0) {
        self->ready_until_ns = 0;
        return UNMARKED;
    }
    self->free_count--;
    mark->uses = 1;
    mark->is_located = mark->is_lent = 0;
    mark->anchor = self->latest;
    return FIRST_CODE - (self->serial * MARKS_OF_CODE + number);
}

void keep_mark(PyObject *recorder, int64_t moment)
{
    Mark *mark = mark_of(device_of(recorder), moment);
    if (mark != NULL)
        mark->uses++;
}

void forget_mark(PyObject *recorder, int64_t moment)
{
    DeviceRecords *self = device_of(recorder);
    free_mark(self, mark_of(self, moment));
}

/* Return a moment as Python has it, a new reference: a number, a Mark, or None if it is not known. Ends one use of it. A
   Mark puts its event into a pool when it is deleted: into this one, or a list of its own if the event is used here. */
PyObject *moment_object(PyObject *recorder, int64_t moment)
{
    if (moment >= NONE)
        return PyLong_FromLongLong(moment);
    DeviceRecords *self = device_of(recorder);
    Mark *mark = mark_of(self, moment);
    if (mark == NULL || mark->anchor <= self->latest - MOST_ANCHORS) {
        free_mark(self, mark);
        return Py_NewRef(Py_None);
    }
    PyObject *event = Py_NewRef(mark->event), *pool = mark->uses > 1 ? PyList_New(0) : Py_NewRef((PyObject *)self);
    PyObject *anchor = Py_NewRef(self->anchors[mark->anchor % MOST_ANCHORS].anchor);
    mark->is_lent = 1;
    free_mark(self, mark);
    PyObject *found = pool == NULL ? NULL : PyObject_CallFunctionObjArgs(self->mark_class, event, anchor, pool, NULL);
    Py_DECREF(event);
    Py_DECREF(anchor);
    Py_XDECREF(pool);
    return found;
}

/* Records. */

Record *new_device_record(Ring *ring, PyObject *recorder, uint8_t kind)
{
    DeviceRecords *self = device_of(recorder);
    if (self == NULL)
        return next_record(ring, kind);
    if (self->count == MOST_RECORDS || !begin_record(ring, kind, &self->records[self->count]))
        return NULL;
    return &self->records[self->count++];
}

/* Return whether there is an anchor between the one of a mark and that mark. */
static int is_after_next(const DeviceRecords *self, const Mark *mark)
{
    const Anchor *next = &self->anchors[(mark->anchor + 1) % MOST_ANCHORS];
    return mark->anchor < self->latest &&
           self->anchors[mark->anchor % MOST_ANCHORS].device_ns + mark->since_ns >= next->device_ns;
}

/* Find the anchor before a mark, and the time since. Return whether the mark has happened, -1 with an exception. */
static int locate(DeviceRecords *self, Mark *mark)
{
    for (;; mark->anchor++) {
        const Anchor *anchor = &self->anchors[mark->anchor % MOST_ANCHORS];
        int is_known = find_elapsed((Event *)anchor->event, (Event *)mark->event, &mark->since_ns);
        if (is_known <= 0)
            return is_known;
        if (mark->since_ns < -self->resolution_ns) {
            PyErr_SetString(PyExc_ValueError,
                            "the device reports an event before the anchor that it was recorded after");
            return -1;
        }
        if (!is_after_next(self, mark))
            break;
    }
    mark->is_located = 1;
    return 1;
}

/* Return the time of the host of a mark between two anchors, as `host_time_ns` does, rounded down. */
static int64_t host_time_of(const DeviceRecords *self, const Mark *mark)
{
    const Anchor *begin = &self->anchors[mark->anchor % MOST_ANCHORS];
    const Anchor *end = &self->anchors[(mark->anchor + 1) % MOST_ANCHORS];
    __int128 distance = (__int128)mark->since_ns * (end->host_ns - begin->host_ns);
    __int128 length = end->device_ns - begin->device_ns, whole = distance / length;
    if (distance % length != 0 && (distance < 0) != (length < 0))
        whole--;
    return begin->host_ns + (int64_t)whole;
}

enum { FAILED = -1, WAITS_FOR_DEVICE, WAITS_FOR_ANCHOR, IS_KNOWN };

static int state_of(DeviceRecords *self, Mark *mark)
{
    if (mark->anchor <= self->latest - MOST_ANCHORS)
        return FAILED; /* too long ago */
    int done = mark->is_located && !is_after_next(self, mark) ? 1 : locate(self, mark);
    if (done <= 0)
        return done < 0 ? FAILED : WAITS_FOR_DEVICE;
    return mark->anchor < self->latest ? IS_KNOWN : WAITS_FOR_ANCHOR;
}

#define TIMES 4

static void times_of(const Record *record, int64_t times[TIMES])
{
    memcpy(times, record, TIMES * sizeof *times);
}

/* Return the state of all times of a record, the last one first: the others have happened before it. */
static int resolve(DeviceRecords *self, Record *record)
{
    int64_t times[TIMES];
    times_of(record, times);
    int state = IS_KNOWN;
    for (int i = TIMES - 1; i >= 0; i--) {
        if (times[i] >= NONE)
            continue;
        Mark *mark = mark_of(self, times[i]);
        int found = mark == NULL ? FAILED : state_of(self, mark);
        if (found < WAITS_FOR_ANCHOR)
            return found;
        state = found < state ? found : state;
        times[i] = found == IS_KNOWN ? host_time_of(self, mark) : NONE;
    }
    if (state != IS_KNOWN || !append_record(self->ring, record, times))
        return WAITS_FOR_ANCHOR;
    return IS_KNOWN;
}

static void free_marks(DeviceRecords *self, const Record *record)
{
    int64_t times[TIMES];
    times_of(record, times);
    for (int i = 0; i < TIMES; i++) {
        int is_again = 0; /* a receive ends with the wait for it */
        for (int before = 0; before < i; before++)
            is_again = is_again || times[before] == times[i];
        if (!is_again)
            free_mark(self, mark_of(self, times[i]));
    }
}

/* Move the records whose times are known to the ring, unless it is full. */
static PyObject *collect(PyObject *object, PyObject *every)
{
    DeviceRecords *self = (DeviceRecords *)object;
    PyObject *type = NULL, *error = NULL, *traceback = NULL;
    int kept = 0, located = 0, is_stopped = 0;
    for (int i = 0; i < self->count; i++) {
        int state = is_stopped ? WAITS_FOR_DEVICE : resolve(self, &self->records[i]);
        is_stopped = is_stopped || (state == WAITS_FOR_DEVICE && every != Py_True);
        located += state == WAITS_FOR_ANCHOR;
        if (state == FAILED || state == IS_KNOWN) {
            free_marks(self, &self->records[i]);
            self->dropped += state == FAILED;
            if (PyErr_Occurred() && type == NULL)
                PyErr_Fetch(&type, &error, &traceback);
            PyErr_Clear();
            continue;
        }
        if (kept != i)
            self->records[kept] = self->records[i];
        kept++;
    }
    self->count = kept;
    if (type != NULL) {
        PyErr_Restore(type, error, traceback);
        return NULL;
    }
    return PyLong_FromLong(located);
}

static PyObject *clear_records(PyObject *object, PyObject *Py_UNUSED(arg))
{
    DeviceRecords *self = (DeviceRecords *)object;
    for (int i = 0; i < self->count; i++)
        free_marks(self, &self->records[i]);
    PyObject *count = PyLong_FromLong(self->count);
    self->count = 0;
    return count;
}

static PyObject *take_dropped(PyObject *object, PyObject *Py_UNUSED(arg))
{
    DeviceRecords *self = (DeviceRecords *)object;
    long long dropped = self->dropped;
    self->dropped = 0;
    return PyLong_FromLongLong(dropped);
}

/* Let one mark more use an event. There is nothing to do for an event that no mark needs. */
static PyObject *append(PyObject *object, PyObject *event)
{
    DeviceRecords *self = (DeviceRecords *)object;
    if (!Py_IS_TYPE(event, &Event_Type))
        return PyErr_Format(PyExc_TypeError, "no event: %R", event);
    for (int tried = 0; tried < MOST_MARKS; tried++) {
        int number = (self->next_without_event + tried) % MOST_MARKS;
        if (self->marks[number].event != NULL)
            continue;
        self->marks[number].event = Py_NewRef(event);
        self->free[self->free_count++] = number;
        self->next_without_event = (number + 1) % MOST_MARKS;
        break;
    }
    Py_RETURN_NONE;
}

static PyObject *add_anchor(PyObject *object, PyObject *args)
{
    DeviceRecords *self = (DeviceRecords *)object;
    PyObject *anchor, *event;
    long long device_ns, host_ns;
    if (!PyArg_ParseTuple(args, "OO!LL:add_anchor", &anchor, &Event_Type, &event, &device_ns, &host_ns))
        return NULL;
    Anchor *place = &self->anchors[++self->latest % MOST_ANCHORS];
    place->device_ns = device_ns;
    place->host_ns = host_ns;
    Py_XSETREF(place->anchor, Py_NewRef(anchor));
    Py_XSETREF(place->event, Py_NewRef(event));
    Py_RETURN_NONE;
}

static void deallocate(PyObject *object)
{
    DeviceRecords *self = (DeviceRecords *)object;
    for (int i = 0; i < MOST_MARKS; i++)
        Py_XDECREF(self->marks[i].event);
    for (int i = 0; i < MOST_ANCHORS; i++) {
        Py_XDECREF(self->anchors[i].anchor);
        Py_XDECREF(self->anchors[i].event);
    }
    Py_XDECREF((PyObject *)self->ring);
    Py_XDECREF(self->stream_of);
    Py_XDECREF(self->device);
    Py_XDECREF(self->mark_class);
    Py_XDECREF(self->late);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names))
{
    PyObject *ring, *stream_of, *device, *mark_class;
    long long resolution_ns;
    if (!PyArg_ParseTuple(args, "O!OOOL:DeviceRecords", &Ring_Type, &ring, &stream_of, &device, &mark_class,
                          &resolution_ns))
        return NULL;
    DeviceRecords *self = (DeviceRecords *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->ring = (Ring *)Py_NewRef(ring);
    self->stream_of = Py_NewRef(stream_of);
    self->device = Py_NewRef(device);
    self->mark_class = Py_NewRef(mark_class);
    self->resolution_ns = resolution_ns;
    self->serial = ++serials;
    self->most = MOST_RECORDS;
    return (PyObject *)self;
}

static Py_ssize_t length(PyObject *object)
{
    return ((DeviceRecords *)object)->count;
}

static PyMethodDef methods[] = {
    {"collect", collect, METH_O,
     "Move the records whose times are known to the ring, and return how many others the device has completed. Stops "
     "at the first that it has not, unless the argument is True."},
    {"clear", clear_records, METH_NOARGS, "Forget all records, and return how many there were."},
    {"take_dropped", take_dropped, METH_NOARGS, "Return how many records had no time since the last call."},
    {"append", append, METH_O, "Take an event for one more mark."},
    {"add_anchor", add_anchor, METH_VARARGS, "Add an anchor: the object of Python, its event, its two times."},
    {NULL},
};

static PyMemberDef members[] = {
    {"ready_until_ns", T_LONGLONG, offsetof(DeviceRecords, ready_until_ns), 0, "When Python has to look again."},
    {"looked_ns", T_LONGLONG, offsetof(DeviceRecords, looked_ns), READONLY, "The late anchor had not happened then."},
    {"late", T_OBJECT, offsetof(DeviceRecords, late), 0, "The event of an anchor that has not happened, or None."},
    {"most", T_INT, offsetof(DeviceRecords, most), 0, "With so many records, the next one is left to Python."},
    {"free", T_INT, offsetof(DeviceRecords, free_count), READONLY, "How many marks can be used."},
    {NULL},
};

static PySequenceMethods sequence = {.sq_length = length};

PyTypeObject DeviceRecords_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stagescope.record._plain.DeviceRecords",
    .tp_doc = "DeviceRecords(ring, stream_of, device, mark_class, resolution_ns): records whose times a device has yet "
              "to report. `stream_of(device)` returns the handle of the current stream.",
    .tp_basicsize = sizeof(DeviceRecords),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = make,
    .tp_dealloc = deallocate,
    .tp_methods = methods,
    .tp_members = members,
    .tp_as_sequence = &sequence,
};
