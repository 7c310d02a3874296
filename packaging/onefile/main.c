/* The agent as one program: a static Python, and behind it a zip with its library and Forewarn.
 *
 * Without arguments for Python it is the command `forewarn`. It is also the Python that `agent run`
 * turns into and that actions start: a first argument with one dash is Python's own (-P -m ...).
 */
#include <Python.h>
#include <limits.h>
#include <nss.h>
#include <unistd.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))

extern PyObject *PyInit__asyncio(void), *PyInit__contextvars(void), *PyInit__decimal(void),
    *PyInit__hashlib(void), *PyInit__json(void), *PyInit__queue(void), *PyInit__sqlite3(void),
    *PyInit__ssl(void), *PyInit__typing(void), *PyInit_mmap(void), *PyInit_resource(void),
    *PyInit_termios(void), *PyInit__core(void);

/* Debian's libpython3.11.a has the others. Built-in modules have no package: the module
 * msgspec._core in the zip hands this one on. */
static struct _inittab modules[] = {
    {"_asyncio", PyInit__asyncio}, {"_contextvars", PyInit__contextvars},
    {"_decimal", PyInit__decimal}, {"_hashlib", PyInit__hashlib},
    {"_json", PyInit__json},       {"_queue", PyInit__queue},
    {"_sqlite3", PyInit__sqlite3}, {"_ssl", PyInit__ssl},
    {"_typing", PyInit__typing},   {"mmap", PyInit_mmap},
    {"resource", PyInit_resource}, {"termios", PyInit_termios},
    {"msgspec_core", PyInit__core}, {NULL, NULL},
};

/* glibc would load the machine's own libraries for these, which need the machine's own glibc. */
static const char *const lookups[][2] = {
    {"hosts", "files dns"}, {"passwd", "files"},    {"group", "files"},   {"shadow", "files"},
    {"services", "files"},  {"protocols", "files"}, {"networks", "files"},
};

/* Debian's OpenSSL looks where Debian has them. */
static const char *const certificates[] = {
    "/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Arch, Alpine */
    "/etc/pki/tls/cert.pem",              /* Red Hat, Fedora, Amazon */
    "/etc/ssl/ca-bundle.pem",             /* SUSE */
};

static void check(PyStatus status, PyConfig *config)
{
    if (PyStatus_Exception(status)) {
        PyConfig_Clear(config);
        Py_ExitStatusException(status);
    }
}

int main(int argc, char **argv)
{
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) {
        fputs("forewarn: needs /proc\n", stderr);
        return 2;
    }
    program[length] = '\0';
    for (size_t i = 0; i < COUNT(lookups); i++)
        __nss_configure_lookup(lookups[i][0], lookups[i][1]);
    for (size_t i = 0; i < COUNT(certificates); i++)
        if (access(certificates[i], R_OK) == 0)
            setenv("SSL_CERT_FILE", certificates[i], 0);
    PyImport_ExtendInittab(modules);

    PyPreConfig pre;
    PyPreConfig_InitPythonConfig(&pre);
    pre.utf8_mode = 1;        /* a locale other than C would be the machine's, and load libraries */
    pre.configure_locale = 0;
    pre.use_environment = 0;
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    check(Py_PreInitialize(&pre), &config);
    config.use_environment = 0; /* PYTHONPATH and its like are meant for another Python */
    config.user_site_directory = 0;
    config.site_import = 0;
    config.write_bytecode = 0;
    config.pathconfig_warnings = 0;
    config.use_frozen_modules = 1;
    config.safe_path = 1;
    config.module_search_paths_set = 1;
    /* Not its path: while the file is replaced by an upgrade, a running agent goes on reading the
     * one that it was started from. */
    check(PyWideStringList_Append(&config.module_search_paths, L"/proc/self/exe"), &config);
    check(PyConfig_SetBytesString(&config, &config.executable, program), &config);
    check(PyConfig_SetString(&config, &config.prefix, L"/proc/self/exe"), &config);
    check(PyConfig_SetString(&config, &config.exec_prefix, L"/proc/self/exe"), &config);

    int python = argc > 1 && argv[1][0] == '-' && argv[1][1] != '-';
    if (python) {
        check(PyConfig_SetBytesArgv(&config, argc, argv), &config);
    } else {
        char **given = PyMem_RawCalloc(argc + 3, sizeof *given);
        char *run[] = {argv[0], "-m", "forewarn"};
        for (int i = 0; i < argc + 2; i++)
            given[i] = i < 3 ? run[i] : argv[i - 2];
        check(PyConfig_SetBytesArgv(&config, argc + 2, given), &config);
    }
    check(Py_InitializeFromConfig(&config), &config);
    PyConfig_Clear(&config);
    return Py_RunMain();
}
