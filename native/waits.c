/* Waits for the handles of messages: `Waits` in record/hooks.py. One wait may be for several messages. */

#include "plain.h"

enum { GUARD, VALUES, PENDING, ENDED, TRANSFERS };

typedef struct {
    int count, places[MOST_TOGETHER];
} Waits;

static void leave_waits(const Waits *waits)
{
    for (int i = 0; i < waits->count; i++)
        leave_call(waits->places[i]);
}

/* Count a receive whose wait has ended. What a function of the training computes in a range begins then, so a range in
   which actions are noted may ask for a mark. */
static void count_receive(Pending *pending, int64_t end)
{
    int32_t pair;
    pending->receives++;
    pending->last_receive_ns = end >= 0 ? end : NONE;
    Py_CLEAR(pending->last_receive);
    if (end >= NONE || !is_in_range(pending->recorder) || noted_in_range(pending->ring, &pair) == Py_None)
        return;
    keep_moment(pending->recorder, end);
    pending->last_receive = moment_object(pending->recorder, end);
    if (pending->last_receive == NULL)
        PyErr_Clear();
}

/* Record a message, whose wait began and ended at two moments. Return -1 if that is left to Python. */
static int record_message(Pending *pending, const Message *message, int64_t start, int64_t end)
{
    PyObject *recorder = pending->recorder;
    Record *record = NULL;
    if (end != UNMARKED && is_open(pending->ring, recorder))
        record = new_record(pending->ring, recorder, message->kind);
    if (record == NULL)
        return -1;
    keep_moment(recorder, start);
    keep_moment(recorder, end);
    record->start_ns = message->start_ns;
    record->end_ns = message->is_receive ? end : message->end_ns;
    record->wait_start_ns = start;
    record->wait_end_ns = end;
    record->bytes = message->bytes;
    record->step = message->step;
    record->stage = message->stage;
    record->microbatch = message->microbatch;
    record->peer = message->peer;
    if (message->is_receive)
        count_receive(pending, end);
    return 0;
}

/* Let Python record a message; `end` is NONE if the wait has failed. Return -1 with an exception. */
static UNUSUAL int record_in_python(const Wrapper *self, const Message *message, int64_t start, int64_t end)
{
    PyObject *recorder = ((Pending *)self->refs[PENDING])->recorder;
    keep_moment(recorder, start);
    keep_moment(recorder, end);
    PyObject *done = PyObject_CallFunction(self->refs[ENDED], "NiLLNN", described(message), message->step,
                                           (long long)message->start_ns, (long long)message->end_ns,
                                           moment_object(recorder, start), moment_object(recorder, end));
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Let Python follow messages whose wait has failed with the exception that is set. */
static UNUSUAL void abandon(const Wrapper *self, const Message *messages, int count, int64_t start)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    for (int i = 0; i < count; i++) {
        if (record_in_python(self, &messages[i], start, NONE) < 0)
            PyErr_Clear();
    }
    forget_moment(((Pending *)self->refs[PENDING])->recorder, start);
    PyErr_Restore(type, error, traceback);
}

/* Call the original, and record the messages that it waits for. */
static PyObject *timed_wait(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names, int64_t start)
{
    Pending *pending = (Pending *)self->refs[PENDING];
    Message messages[MOST_TOGETHER], *found;
    Waits waits = {0};
    while (waits.count < MOST_TOGETHER && (found = find_issued(pending, args[0])) != NULL) {
        messages[waits.count] = *found;
        remove_issued(pending, found);
        waits.places[waits.count] = enter_wait(&messages[waits.count], start >= 0 ? start : now_ns());
        waits.count++;
    }
    PyObject *result = pass_to(self->original, args, nargsf, names);
    fetch(pending->ring, pending->recorder);
    leave_waits(&waits);
    if (result == NULL) {
        abandon(self, messages, waits.count, start);
        return NULL;
    }
    int64_t end = moment_of(pending->recorder, 0);
    for (int i = 0; result != NULL && i < waits.count; i++) {
        if (record_message(pending, &messages[i], start, end) < 0 &&
            record_in_python(self, &messages[i], start, end) < 0)
            Py_CLEAR(result);
    }
    forget_moment(pending->recorder, start);
    forget_moment(pending->recorder, end);
    return result;
}

/* The transfers of Megatron-core that have the same handle. */

typedef struct {
    Waits waits;
    Transfer transfers[MOST_TOGETHER];
    PyObject *tensors[MOST_TOGETHER];
    int has_receive;
} Together;

/* The moments at which a wait begins and ends: with a receive, those of the stream that goes on after it; other
   transfers are waited for by the host. */
static int64_t moment_of_wait(Transfers *transfers, int has_receive, int is_begin)
{
    return has_receive ? moment_of(transfers->recorder, is_begin) : now_ns();
}

static int has_receive(const Transfers *transfers, const PyObject *handle)
{
    for (int place = 0; place < transfers->count; place++) {
        if (transfers->handles[place] == handle && transfers->transfers[place].tensor != NULL)
            return 1;
    }
    return 0;
}

static void take_together(Transfers *transfers, PyObject *handle, int64_t start, Together *taken)
{
    Waits *waits = &taken->waits;
    Transfer *found;
    while (waits->count < MOST_TOGETHER && (found = find_handle(transfers, handle)) != NULL) {
        Transfer *transfer = &taken->transfers[waits->count];
        *transfer = remove_transfer(transfers, found, &taken->tensors[waits->count]);
        Py_CLEAR(transfer->message.reference);
        waits->places[waits->count] = enter_wait(&transfer->message, start >= 0 ? start : now_ns());
        waits->count++;
    }
}

/* Keep a transfer until an action takes its tensor, or for Python. */
static void put_back(Transfers *transfers, PyObject *tensor, Transfer transfer)
{
    if (add_transfer(transfers, NULL, tensor, transfer) == 0)
        return;
    give_transfers(transfers);
    if (add_transfer(transfers, NULL, tensor, transfer) < 0) {
        forget_moment(transfers->recorder, transfer.wait_start_ns);
        forget_moment(transfers->recorder, transfer.wait_end_ns);
        drop_transfer(transfer);
    }
}

/* Record the sends, and keep the receives. Return whether something is left to Python. */
static int end_together(Transfers *transfers, Together *taken, int64_t start, int64_t end)
{
    int is_left = end == UNMARKED;
    for (int i = taken->waits.count - 1; i >= 0; i--) {
        Transfer *transfer = &taken->transfers[i];
        if (end != UNMARKED) {
            keep_moment(transfers->recorder, transfer->wait_start_ns = start);
            keep_moment(transfers->recorder, transfer->wait_end_ns = end);
        }
        if (end != UNMARKED && transfer->tensor == NULL && record_transfer(transfers, transfer) == 0) {
            drop_transfer(*transfer);
            continue;
        }
        is_left = is_left || transfer->tensor == NULL;
        put_back(transfers, taken->tensors[i], *transfer);
    }
    forget_moment(transfers->recorder, start);
    forget_moment(transfers->recorder, end);
    return is_left;
}

/* Let Python follow transfers whose wait has failed with the exception that is set. */
static UNUSUAL void abandon_transfers(Transfers *transfers, Together *taken, int64_t start)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    end_together(transfers, taken, start, UNMARKED);
    give_transfers(transfers);
    PyErr_Restore(type, error, traceback);
}

/* Call the original. A receive is recorded when an action takes the tensor, a send now. */
static PyObject *timed_transfers(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names,
                                 int64_t start)
{
    Transfers *transfers = (Transfers *)self->refs[TRANSFERS];
    Together taken;
    taken.waits.count = 0;
    taken.has_receive = has_receive(transfers, args[0]);
    take_together(transfers, args[0], start, &taken);
    PyObject *result = pass_to(self->original, args, nargsf, names);
    fetch(transfers->ring, transfers->recorder);
    leave_waits(&taken.waits);
    if (result == NULL) {
        abandon_transfers(transfers, &taken, start);
        return NULL;
    }
    if (end_together(transfers, &taken, start, moment_of_wait(transfers, taken.has_receive, 0)))
        give_transfers(transfers);
    return result;
}

/* Return a wait that is known in Python, or none. */
static PyObject *wait_in_python(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    PyObject *values = self->refs[VALUES];
    int is_known = PyVectorcall_NARGS(nargsf) > 0 && PyDict_GET_SIZE(values) > 0;
    if (is_known) {
        PyObject *key = PyLong_FromVoidPtr(args[0]);
        is_known = key == NULL ? -1 : PyDict_Contains(values, key);
        Py_XDECREF(key);
    }
    if (is_known < 0)
        return NULL;
    return pass_to(is_known ? self->general : self->original, args, nargsf, names);
}

PyObject *call_wait(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    const Wrapper *self = (Wrapper *)object;
    Pending *pending = (Pending *)self->refs[PENDING];
    Transfers *transfers = (Transfers *)self->refs[TRANSFERS];
    __builtin_prefetch((char *)self->refs[GUARD] + slots.is_off);
    __builtin_prefetch(&pending->sends_issued);
    fetch_transfers(transfers);
    int is_of_handle = PyVectorcall_NARGS(nargsf) > 0, is_on = get_slot(self->refs[GUARD], slots.is_off) == Py_False;
    Message *found = is_of_handle ? find_issued(pending, args[0]) : NULL;
    Transfer *transfer = is_of_handle && found == NULL ? find_handle(transfers, args[0]) : NULL;
    int64_t start = UNMARKED;
    if (transfer != NULL && is_on && is_open(transfers->ring, transfers->recorder))
        start = moment_of_wait(transfers, has_receive(transfers, args[0]), 1);
    if (start != UNMARKED)
        return timed_transfers(self, args, nargsf, names, start);
    if (transfer != NULL)
        give_transfers(transfers);
    if (found == NULL)
        return wait_in_python(self, args, nargsf, names);
    if (is_on && is_reference_to(found->reference, args[0]) && is_open(pending->ring, pending->recorder))
        start = moment_of(pending->recorder, 1);
    if (start == UNMARKED) {
        give_to_python(pending);
        return wait_in_python(self, args, nargsf, names);
    }
    return timed_wait(self, args, nargsf, names, start);
}
