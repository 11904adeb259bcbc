/* Megatron-core's functions that issue transfers and return their handles; see
   record/frameworks/megatron_messages.py. */

#include "plain.h"

enum { SEND_PREV, RECV_PREV, SEND_NEXT, RECV_NEXT, DIRECTIONS, PREV = DIRECTIONS, NEXT };
enum { RECORDER, GUARD, TRANSFERS, RUNS, PLACES, CLASSES, SEEN };
enum { IS_IN_ORDER = DIRECTIONS }; /* the numbers before it are the kinds of the directions */

static PyObject *arguments[DIRECTIONS + 2], *names_of_handles[DIRECTIONS], *nbytes;

int prepare_exchanges(void)
{
    static const char *const ARGUMENTS[] = {"tensor_send_prev", "tensor_recv_prev",   "tensor_send_next",
                                            "tensor_recv_next", "prev_pipeline_rank", "next_pipeline_rank"};
    static const char *const HANDLES[] = {"send_prev", "recv_prev", "send_next", "recv_next"};
    return intern(&nbytes, 1, (const char *[]){"nbytes"}) < 0 || intern(arguments, DIRECTIONS + 2, ARGUMENTS) < 0
               ? -1
               : intern(names_of_handles, DIRECTIONS, HANDLES);
}

typedef struct {
    int count;
    int directions[DIRECTIONS];
    PyObject *tensors[DIRECTIONS], *handles[DIRECTIONS];
    Transfer transfers[DIRECTIONS];
} Exchange;

static void drop_exchange(Exchange *self)
{
    for (int i = 0; i < self->count; i++)
        drop_transfer(self->transfers[i]);
}

/* Add the transfer of a tensor. Return -1 if it is unusual, maybe with an exception. */
static int add_tensor(const Wrapper *self, Exchange *exchange, int direction, PyObject *tensor, PyObject *peer)
{
    const Transfers *transfers = (Transfers *)self->refs[TRANSFERS];
    int is_receive = direction == RECV_PREV || direction == RECV_NEXT;
    Transfer transfer = {.wait_start_ns = NONE, .wait_end_ns = NONE, .chunk = transfers->chunk};
    Message *message = &transfer.message;
    Action maker;
    message->kind = (uint8_t)self->numbers[direction];
    message->is_receive = (uint8_t)is_receive;
    message->stage = transfers->stage;
    message->microbatch = NONE;
    if (peer == NULL || !PyLong_CheckExact(peer) || !is_int32(peer, &message->peer))
        return -1;
    if (!is_receive) {
        if (find_place((Places *)self->refs[PLACES], tensor, &maker) == NULL)
            return -1;
        message->stage = maker.stage;
        message->microbatch = maker.microbatch;
        transfer.chunk = maker.chunk;
    }
    /* Before the transfer is issued: from then on, another thread writes to the same cache lines. */
    PyObject *size = PyObject_GetAttr(tensor, nbytes);
    message->bytes = size != NULL && PyLong_CheckExact(size) ? PyLong_AsLongLong(size) : NONE;
    Py_XDECREF(size);
    if (message->bytes < 0)
        return -1;
    if (is_receive && (transfer.tensor = PyWeakref_NewRef(tensor, NULL)) == NULL)
        return -1;
    exchange->directions[exchange->count] = direction;
    exchange->tensors[exchange->count] = tensor;
    exchange->transfers[exchange->count++] = transfer;
    return 0;
}

/* Find the handles of all transfers: a single one of all of them (NCCL), or one of each. Return -1 if they are
   unusual. */
static int find_handles(const Wrapper *self, Exchange *exchange, PyObject *handles)
{
    int is_list = PyList_CheckExact(handles) && self->numbers[IS_IN_ORDER];
    int is_single = PyList_CheckExact(handles) && PyList_GET_SIZE(handles) == 1 && (is_list || exchange->count > 1);
    Py_ssize_t count = is_list ? PyList_GET_SIZE(handles) : PyDict_CheckExact(handles) ? PyDict_GET_SIZE(handles) : -1;
    Transfers *transfers = (Transfers *)self->refs[TRANSFERS];
    if ((!is_single && count != exchange->count) || transfers->count + exchange->count > MOST_TRANSFERS)
        return -1;
    for (int i = 0; i < exchange->count; i++) {
        PyObject *handle = is_single ? PyList_GET_ITEM(handles, 0)
                           : is_list ? PyList_GET_ITEM(handles, i)
                                     : PyDict_GetItemWithError(handles, names_of_handles[exchange->directions[i]]);
        if (handle == NULL || is_in_classes(self->refs[CLASSES], handle, &transfers->known_class) != 1)
            return -1;
        for (int before = 0; !is_single && before < i; before++) {
            if (exchange->handles[before] == handle)
                return -1;
        }
        exchange->handles[i] = handle;
    }
    return 0;
}

/* Follow all transfers that have been issued. Return -1 if that is left to Python, maybe with an exception. */
static int follow(const Wrapper *self, Exchange *exchange, PyObject *handles, int64_t start_ns, int64_t end_ns)
{
    Transfers *transfers = (Transfers *)self->refs[TRANSFERS];
    PyObject *references[DIRECTIONS] = {NULL};
    int done = find_handles(self, exchange, handles);
    for (int i = 0; done == 0 && i < exchange->count; i++) {
        references[i] = PyWeakref_NewRef(exchange->handles[i], NULL);
        done = references[i] == NULL ? -1 : 0;
    }
    /* Checked only now: creating references may collect garbage, which runs other code. None runs from here on. */
    if (!is_open(transfers->ring, self->refs[RECORDER]) || transfers->count + exchange->count > MOST_TRANSFERS)
        done = -1;
    for (int i = 0; done == 0 && i < exchange->count; i++)
        done = find_handle(transfers, exchange->handles[i]) != NULL ? -1 : 0;
    for (int i = 0; i < exchange->count; i++) {
        if (done < 0) {
            Py_XDECREF(references[i]);
            continue;
        }
        Transfer *transfer = &exchange->transfers[i];
        transfer->message.reference = references[i];
        transfer->message.step = step_of(transfers->ring);
        transfer->message.start_ns = start_ns;
        transfer->message.end_ns = end_ns;
        PyObject *tensor = transfer->tensor == NULL ? NULL : exchange->tensors[i];
        add_transfer(transfers, exchange->handles[i], tensor, *transfer);
    }
    if (done == 0)
        exchange->count = 0; /* their references have been taken */
    return done;
}

/* Let Python follow the transfers of a call. Return NULL with an exception, or the result. */
static UNUSUAL PyObject *see(const Wrapper *self, PyObject *const *args, PyObject *names, PyObject *result,
                             int64_t start_ns)
{
    PyObject *given = keywords_of(args, names), *start = PyLong_FromLongLong(start_ns), *done = NULL;
    if (given != NULL && start != NULL)
        done = PyObject_CallFunctionObjArgs(self->refs[SEEN], given, start, result, NULL);
    Py_XDECREF(given);
    Py_XDECREF(start);
    return unless_raised(result, done);
}

static PyObject *exchange(const Wrapper *self, PyObject *const *args, size_t nargsf, PyObject *names, Exchange *known)
{
    int64_t start_ns = now_ns();
    PyObject *result = pass_to(self->original, args, nargsf, names);
    int64_t end_ns = now_ns();
    if (result == NULL || follow(self, known, result, start_ns, end_ns) == 0)
        return result;
    if (PyErr_Occurred() && is_of_training())
        Py_CLEAR(result);
    return result == NULL ? NULL : see(self, args, names, result, start_ns);
}

/* Call a function that issues transfers, as `watched_wrapper` does with the `Exchange` of megatron_messages.py. */
PyObject *call_exchange(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Wrapper *self = (Wrapper *)object;
    fetch_wrapper(self);
    Transfers *transfers = (Transfers *)self->refs[TRANSFERS];
    fetch_transfers(transfers);
    fetch(transfers->ring, self->refs[RECORDER]);
    __builtin_prefetch((char *)self->refs[GUARD] + slots.is_off);
    __builtin_prefetch(self->refs[PLACES]);
    if (PyVectorcall_NARGS(nargsf) > 0 ||
        !is_usual(self->refs[RECORDER], self->refs[GUARD], self->refs[RUNS], transfers))
        return pass_to(self->general, args, nargsf, names);
    CallSite site = site_of(self, names, arguments, DIRECTIONS + 2);
    Exchange known = {.count = 0};
    int done = 0;
    for (int direction = 0; done == 0 && direction < DIRECTIONS; direction++) {
        PyObject *tensor = argument(args, 0, site.at[direction], PY_SSIZE_T_MAX);
        PyObject *peer = argument(args, 0, site.at[direction < SEND_NEXT ? PREV : NEXT], PY_SSIZE_T_MAX);
        if (tensor != NULL)
            done = add_tensor(self, &known, direction, tensor, peer);
    }
    PyObject *result = done < 0 ? leave_to_python(self, args, nargsf, names)
                                : exchange(self, args, nargsf, names, &known);
    drop_exchange(&known);
    return result;
}
