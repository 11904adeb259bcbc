/* Records of the training thread that wait for the writer, packed, in memory that is allocated once.

   For Python it is the queue of record/waiting.py: spans are appended as the tuples that are described there. */

#include "plain.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the format is little-endian"
#endif

#define MOST_RECORDS 4096
#define KINDS 256
#define NO_LANE 255

_Static_assert(sizeof(Record) == 72, "as SPAN in record/format.py");

/* `plain`, `in_range` and `thread` are objects of the recorder whose values are known: the step and the index of the
   thread, the pair, and the identifier of the thread. */
struct Ring {
    PyObject_HEAD
    PyObject *plain, *thread, *in_range;
    unsigned long thread_number;
    int32_t step, pair;
    uint16_t thread_index;
    Py_ssize_t first, count;
    long long dropped;
    Record records[MOST_RECORDS];
};

static uint8_t lanes[KINDS]; /* beside other variables that each call reads, in the same page of memory */

/* Read the step from the bytes of `plain_middle` in record/records.py: it follows two times and a size. */
static int read_step(PyObject *middle, int32_t *step)
{
    if (!PyBytes_CheckExact(middle) || PyBytes_GET_SIZE(middle) != 28)
        return 0;
    memcpy(step, PyBytes_AS_STRING(middle) + 24, sizeof *step);
    return 1;
}

static int read_plain(Ring *ring, PyObject *plain)
{
    int32_t index;
    if (!PyTuple_CheckExact(plain) || PyTuple_GET_SIZE(plain) != 2 ||
        !read_step(PyTuple_GET_ITEM(plain, 0), &ring->step) || !is_int32(PyTuple_GET_ITEM(plain, 1), &index))
        return 0;
    ring->thread_index = (uint16_t)index;
    Py_XSETREF(ring->plain, Py_NewRef(plain));
    return 1;
}

/* Read what `plain_in_range` of a recorder has besides what would be `plain`. */
static int read_range(Ring *ring, PyObject *found)
{
    if (!PyTuple_CheckExact(found) || PyTuple_GET_SIZE(found) != 3 ||
        !is_int32(PyTuple_GET_ITEM(found, 1), &ring->pair) ||
        !(PyTuple_GET_ITEM(found, 2) == Py_None || PySet_CheckExact(PyTuple_GET_ITEM(found, 2))))
        return 0;
    Py_XSETREF(ring->in_range, Py_NewRef(found));
    return 1;
}

/* Return what all actions have in common outside of ranges, or in the one in progress; NULL if that is unusual. */
static PyObject *plain_of(Ring *ring, PyObject *recorder)
{
    PyObject *plain = get_slot(recorder, slots.plain);
    if (plain != Py_None || !is_in_range(recorder))
        return plain == Py_None ? NULL : plain;
    PyObject *found = get_slot(recorder, slots.plain_in_range);
    return found == ring->in_range || read_range(ring, found) ? PyTuple_GET_ITEM(found, 0) : NULL;
}

/* Return the set in which the actions of the range in progress are noted, a borrowed reference, None if there is none,
   and the number of its pair. The ring has been open in it. */
PyObject *noted_in_range(const Ring *ring, int32_t *pair)
{
    *pair = ring->pair;
    return PyTuple_GET_ITEM(ring->in_range, 2);
}

static int read_thread(Ring *ring, PyObject *thread)
{
    if (!PyLong_Check(thread))
        return 0;
    ring->thread_number = PyLong_AsUnsignedLongMask(thread);
    Py_XSETREF(ring->thread, Py_NewRef(thread));
    return 1;
}

/* Return whether this thread may leave a record of the current step here, while nothing is unusual. */
int is_open(Ring *ring, PyObject *recorder)
{
    PyObject *plain = plain_of(ring, recorder), *thread = get_slot(recorder, slots.waiting_thread);
    if (plain == NULL || thread == NULL || ring->count >= MOST_RECORDS)
        return 0;
    if (plain != ring->plain && !read_plain(ring, plain))
        return 0;
    if (thread != ring->thread && !read_thread(ring, thread))
        return 0;
    return ring->thread_number == this_thread();
}

/* Ask for the memory that recording needs, all at once: the training has evicted it from the caches. */
void fetch(const Ring *ring, PyObject *recorder)
{
    __builtin_prefetch((char *)recorder + slots.action, 1);
    __builtin_prefetch((char *)recorder + slots.plain, 1);
    __builtin_prefetch(ring, 1);
    __builtin_prefetch(&ring->count, 1);
    __builtin_prefetch(lanes);
}

/* Return the step of an open ring. */
int32_t step_of(const Ring *ring)
{
    return ring->step;
}

/* Begin a record of an open ring, whose times and place are yet to be set. Return whether the kind is known. */
int begin_record(const Ring *ring, uint8_t kind, Record *record)
{
    if (lanes[kind] == NO_LANE)
        return 0;
    record->wait_start_ns = record->wait_end_ns = record->bytes = NONE;
    record->step = ring->step;
    record->peer = record->pair = NONE;
    record->name = 0;
    record->chunk = NONE;
    record->thread = ring->thread_index;
    record->kind = kind;
    record->lane = lanes[kind];
    record->reserved = 0;
    return 1;
}

/* Return the next record of an open ring, which has been begun; NULL if the kind is unknown. */
Record *next_record(Ring *ring, uint8_t kind)
{
    Record *record = &ring->records[(ring->first + ring->count) % MOST_RECORDS];
    if (!begin_record(ring, kind, record))
        return NULL;
    ring->count++;
    return record;
}

/* Append a record with other times, in the order of its fields. Return whether there was place for it. */
int append_record(Ring *ring, const Record *record, const int64_t times[4])
{
    if (ring->count >= MOST_RECORDS)
        return 0;
    Record *place = &ring->records[(ring->first + ring->count++) % MOST_RECORDS];
    *place = *record;
    place->start_ns = times[0];
    place->end_ns = times[1];
    place->wait_start_ns = times[2];
    place->wait_end_ns = times[3];
    return 1;
}

/* Set a field from the number of a framework, of any type that struct.pack takes. Return whether it fits; if not, there
   may be an exception. */
static int fits(PyObject *value, int bits, int is_signed, int64_t *field)
{
    PyObject *number = PyNumber_Index(value);
    if (number == NULL)
        return 0;
    int overflow;
    long long found = PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    long long most = bits == 64 ? INT64_MAX : (1LL << (bits - is_signed)) - 1;
    *field = found;
    return !overflow && found <= most && found >= (is_signed ? -most - 1 : 0);
}

/* The fields of a record in order, without the lane, as a tuple of all of them has. */
enum { START, END, WAIT_START, WAIT_END, BYTES, STEP, STAGE, MICROBATCH, PEER, PAIR, NAME, CHUNK, THREAD, KIND, FIELDS };

static const struct {
    int bits, is_signed;
} SIZES[FIELDS] = {
    [START] = {64, 1}, [END] = {64, 1},        [WAIT_START] = {64, 1}, [WAIT_END] = {64, 1}, [BYTES] = {64, 1},
    [STEP] = {32, 1},  [STAGE] = {32, 1},      [MICROBATCH] = {32, 1}, [PEER] = {32, 1},     [PAIR] = {32, 1},
    [NAME] = {32, 0},  [CHUNK] = {16, 1},      [THREAD] = {16, 0},     [KIND] = {8, 0},
};

/* The forms of tuples: where the fields are that are numbers, and where those of their `Plain` and of the tuple at the
   end are, if they have them. */
typedef struct {
    Py_ssize_t size;
    int fields[FIELDS], plain, middle, last, last_fields[5];
} Form;

#define NO_FIELD (-1)

static const Form FORMS[] = {
    {4, {START, END, NO_FIELD, NO_FIELD}, 2, NO_FIELD, 3, {KIND, STAGE, MICROBATCH, CHUNK, NO_FIELD}},
    {7, {START, END, WAIT_START, WAIT_END, STEP, NO_FIELD, NO_FIELD}, 5, NO_FIELD, 6,
     {KIND, STAGE, MICROBATCH, PEER, BYTES}},
    {9, {START, END, NO_FIELD, STAGE, MICROBATCH, THREAD, KIND, CHUNK, NAME}, NO_FIELD, 2, NO_FIELD, {NO_FIELD}},
    {FIELDS, {START, END, WAIT_START, WAIT_END, BYTES, STEP, STAGE, MICROBATCH, PEER, PAIR, NAME, CHUNK, THREAD, KIND},
     NO_FIELD, NO_FIELD, NO_FIELD, {NO_FIELD}},
};

static int read_fields(PyObject *tuple, const int *fields, Py_ssize_t count, int64_t *values)
{
    for (Py_ssize_t i = 0; i < count && i < PyTuple_GET_SIZE(tuple); i++) {
        int field = fields[i];
        if (field != NO_FIELD &&
            !fits(PyTuple_GET_ITEM(tuple, i), SIZES[field].bits, SIZES[field].is_signed, &values[field]))
            return 0;
    }
    return 1;
}

/* Read the fields of a tuple. Return whether all of them fit. */
static int read_tuple(PyObject *tuple, int64_t *values)
{
    const Form *form = FORMS, *end = FORMS + sizeof FORMS / sizeof *FORMS;
    while (form < end && form->size != PyTuple_GET_SIZE(tuple))
        form++;
    if (form == end || !read_fields(tuple, form->fields, form->size, values))
        return 0;
    PyObject *middle = form->middle == NO_FIELD ? NULL : PyTuple_GET_ITEM(tuple, form->middle);
    if (form->plain != NO_FIELD) {
        PyObject *plain = PyTuple_GET_ITEM(tuple, form->plain);
        if (!PyTuple_CheckExact(plain) || PyTuple_GET_SIZE(plain) != 2 ||
            !fits(PyTuple_GET_ITEM(plain, 1), 16, 0, &values[THREAD]))
            return 0;
        middle = form->size == 4 ? PyTuple_GET_ITEM(plain, 0) : NULL; /* a message has its own step */
    }
    int32_t step = (int32_t)values[STEP];
    if (middle != NULL && !read_step(middle, &step))
        return 0;
    values[STEP] = step;
    if (form->last == NO_FIELD)
        return 1;
    PyObject *last = PyTuple_GET_ITEM(tuple, form->last);
    return PyTuple_CheckExact(last) && read_fields(last, form->last_fields, 5, values);
}

/* Append a span. What is no span, or has a number that does not fit its field, is counted as dropped. */
static PyObject *append(PyObject *object, PyObject *span)
{
    Ring *ring = (Ring *)object;
    int64_t values[FIELDS] = {[WAIT_START] = NONE, [WAIT_END] = NONE, [BYTES] = NONE, [STEP] = NONE, [PEER] = NONE,
                              [PAIR] = NONE, [CHUNK] = NONE};
    int is_read = PyTuple_CheckExact(span) && read_tuple(span, values);
    Record *record = is_read && ring->count < MOST_RECORDS ? next_record(ring, (uint8_t)values[KIND]) : NULL;
    if (record == NULL) {
        if (PyErr_Occurred() && is_of_training())
            return NULL;
        ring->dropped++;
        Py_RETURN_NONE;
    }
    record->start_ns = values[START];
    record->end_ns = values[END];
    record->wait_start_ns = values[WAIT_START];
    record->wait_end_ns = values[WAIT_END];
    record->bytes = values[BYTES];
    record->step = (int32_t)values[STEP];
    record->stage = (int32_t)values[STAGE];
    record->microbatch = (int32_t)values[MICROBATCH];
    record->peer = (int32_t)values[PEER];
    record->pair = (int32_t)values[PAIR];
    record->name = (uint32_t)values[NAME];
    record->chunk = (int16_t)values[CHUNK];
    record->thread = (uint16_t)values[THREAD];
    Py_RETURN_NONE;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names))
{
    Py_buffer given;
    if (!PyArg_ParseTuple(args, "y*:Ring", &given))
        return NULL;
    Ring *ring = NULL;
    if (given.len != KINDS)
        PyErr_SetString(PyExc_ValueError, "one lane for each kind");
    else
        ring = (Ring *)type->tp_alloc(type, 0);
    if (ring != NULL)
        memcpy(lanes, given.buf, KINDS);
    PyBuffer_Release(&given);
    return (PyObject *)ring;
}

static void deallocate(PyObject *object)
{
    Py_XDECREF(((Ring *)object)->plain);
    Py_XDECREF(((Ring *)object)->in_range);
    Py_XDECREF(((Ring *)object)->thread);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *clear(PyObject *object, PyObject *Py_UNUSED(arg))
{
    ((Ring *)object)->count = 0;
    ((Ring *)object)->dropped = 0;
    Py_RETURN_NONE;
}

static PyObject *take(PyObject *object, PyObject *Py_UNUSED(arg))
{
    Ring *ring = (Ring *)object;
    Py_ssize_t count = ring->count, before_end = MOST_RECORDS - ring->first;
    Py_ssize_t first = count < before_end ? count : before_end;
    PyObject *found = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(Record));
    if (found == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(found);
    memcpy(to, &ring->records[ring->first], first * sizeof(Record));
    memcpy(to + first * sizeof(Record), ring->records, (count - first) * sizeof(Record));
    ring->first = (ring->first + count) % MOST_RECORDS;
    ring->count = 0;
    return found;
}

static Py_ssize_t length(PyObject *object)
{
    return ((Ring *)object)->count;
}

static PyMethodDef methods[] = {
    {"append", append, METH_O, "Append a span, a tuple of record/waiting.py."},
    {"take", take, METH_NOARGS, "Return all records as bytes, and forget them."},
    {"clear", clear, METH_NOARGS, "Forget all records."},
    {NULL},
};

static PyObject *get_most(PyObject *Py_UNUSED(object), void *Py_UNUSED(closure))
{
    return PyLong_FromLong(MOST_RECORDS);
}

static PyGetSetDef attributes[] = {
    {"most", get_most, NULL, "How many records there may be."},
    {NULL},
};

static PyMemberDef members[] = {
    {"dropped", T_LONGLONG, offsetof(Ring, dropped), READONLY, "How many spans had a value that does not fit."},
    {NULL},
};

static PySequenceMethods sequence = {.sq_length = length};

PyTypeObject Ring_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "stagescope.record._plain.Ring",
    .tp_doc = "Ring(lanes): records that wait for the writer; `lanes` has the lane of each kind, or 255.",
    .tp_basicsize = sizeof(Ring),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = make,
    .tp_dealloc = deallocate,
    .tp_methods = methods,
    .tp_members = members,
    .tp_getset = attributes,
    .tp_as_sequence = &sequence,
};
