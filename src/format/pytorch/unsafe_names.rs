//! Functions that no checkpoint calls, but a pickle that was made to harm does.
//!
//! Nothing that a pickle names is ever called here. A file that would call one of these elsewhere is refused all the same,
//! so that nobody takes its weights for good.

/// Modules of which no function belongs into a checkpoint.
const MODULES: &[&str] = &[
    "os",
    "posix",
    "nt",
    "subprocess",
    "sys",
    "shutil",
    "socket",
    "pty",
    "commands",
    "importlib",
    "runpy",
    "ctypes",
    "_ctypes",
    "code",
    "codeop",
    "pdb",
    "bdb",
    "webbrowser",
    "pip",
    "marshal",
    "imp",
    "signal",
    "timeit",
    "cProfile",
    "profile",
    "ensurepip",
    "venv",
    "idlelib",
    "pydoc",
    "requests",
    "urllib",
    "urllib2",
    "httplib",
    "http",
    "ftplib",
    "smtplib",
    "telnetlib",
    "asyncio",
    "multiprocessing",
    "pkgutil",
    "zipimport",
    "_posixsubprocess",
];

/// Functions of `builtins`.
const BUILTINS: &[&str] = &[
    "eval",
    "exec",
    "execfile",
    "compile",
    "__import__",
    "open",
    "file",
    "input",
    "raw_input",
    "breakpoint",
    "setattr",
    "delattr",
    "globals",
    "locals",
    "vars",
    "apply",
    "memoryview",
    "exit",
    "quit",
    "help",
    "reload",
];

/// Functions of modules that have harmless ones too.
const FUNCTIONS: &[(&str, &str)] = &[
    ("pickle", "load"),
    ("pickle", "loads"),
    ("_pickle", "load"),
    ("_pickle", "loads"),
    ("cPickle", "load"),
    ("cPickle", "loads"),
    ("dill", "load"),
    ("dill", "loads"),
    ("joblib", "load"),
    ("numpy", "load"),
    ("torch", "load"),
    ("torch.serialization", "load"),
    ("torch.hub", "load"),
    ("torch.storage", "eval"),
    ("types", "FunctionType"),
    ("types", "CodeType"),
    ("types", "LambdaType"),
    ("operator", "attrgetter"),
    ("operator", "methodcaller"),
    ("_operator", "attrgetter"),
    ("_operator", "methodcaller"),
    ("numpy.testing._private.utils", "runstring"),
    ("torch.utils.collect_env", "run"),
    ("torch._inductor.codecache", "compile_file"),
    ("tempfile", "mktemp"),
    ("threading", "Thread"),
];

/// Returns whether calling it is an attack rather than a checkpoint.
pub(super) fn is_unsafe(module: &str, name: &str) -> bool {
    let root = module.split('.').next().unwrap_or(module);
    // Protocol 4 names attributes of classes and functions, as in `eval.__call__`, and of modules, as in `torch.os.system`.
    let first = name.split('.').next().unwrap_or(name);
    let mut parents = name.rsplit('.').skip(1);
    MODULES.contains(&root)
        || parents.any(|parent| MODULES.contains(&parent))
        || (matches!(module, "builtins" | "__builtin__" | "__builtins__") && BUILTINS.contains(&first))
        || FUNCTIONS.contains(&(module, first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_are_told_from_checkpoints() {
        for (module, name) in [
            ("posix", "system"),
            ("os", "popen"),
            ("os.path", "x"),
            ("torch", "os.system"),
            ("torch.nn", "modules.sys.exit"),
            ("__builtin__", "eval"),
            ("builtins", "exec.__call__"),
            ("importlib.util", "module_from_spec"),
            ("torch.hub", "load"),
        ] {
            assert!(is_unsafe(module, name), "{module}.{name}");
        }
        for (module, name) in [
            ("builtins", "set"),
            ("__builtin__", "complex"),
            ("collections", "OrderedDict"),
            ("argparse", "Namespace"),
            ("torch._utils", "_rebuild_tensor_v2"),
            ("osmium", "system"),
            ("mymodel", "Outer.Inner"),
            ("mymodel", "profile"),
            ("pathlib", "PosixPath"),
            ("codecs", "encode"),
        ] {
            assert!(!is_unsafe(module, name), "{module}.{name}");
        }
    }
}
