//! The whole way of a conversion: open → bind → plan → prove → execute → publish.

mod attention;
mod companions;
mod computed;
mod config;
mod options;
pub(crate) mod random;
mod resume;
mod tensor;
mod verification;
mod weigh;

pub use attention::Attention;
use attention::Computation;
pub use companions::Companions;
pub use config::WrittenConfig;
pub use options::check_ending;
pub use verification::{Verification, VerifyOptions};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::bind::{BindOptions, Bound, bind};
use crate::claims::Claims;
use crate::diag::{Collector, Diagnostic, Errors, Stage};
use crate::evidence::Evidence;
use crate::exec::publish::{Destination, Kept, PublishOptions, Staging};
use crate::exec::{ExecStats, Limits, execute};
use crate::fold::fold_keys;
use crate::format::output::{OutputLayout, OutputOptions, OutputTensor, in_file_of, lay_out, lay_out_set};
use crate::format::{FileSet, Format, OpenOptions, Reader, files_of, open, open_files, open_set};
use crate::identity::Identity;
use crate::mapping::Layout;
use crate::mapping::select::Selection;
use crate::plan::prove::Proof;
use crate::plan::{Plan, build, prove};
use crate::progress::Progress;
use crate::provenance::Provenance;
use crate::verify::readback::{ReadBack, read_back};

/// What a caller may ask of a conversion beyond the layouts and the source.
///
/// ```
/// use qkvconv::{Allow, BindOptions, ConvertOptions};
///
/// let bind = BindOptions::default().axis("h", 12).allow([Allow::Unmatched]);
/// let options = ConvertOptions::default().bind(bind).trust_layout(true);
/// assert!(options.bind.allows(Allow::Unmatched) && options.trust_layout);
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// How the source is opened.
    pub open: OpenOptions,
    /// How it is bound.
    pub bind: BindOptions,
    /// The source's config; `None` for those beside it. What `bind` tells already overrules both.
    pub config: Option<PathBuf>,
    /// Whether --from overrules the layout that the source records, and what the weights say of it.
    pub trust_layout: bool,
    /// The format of the output; `None` for the one that the layout's file names say, else safetensors.
    pub format: Option<Format>,
    /// The most bytes of tensors in one output file; `None` for one file whatever its size.
    pub max_shard_size: Option<u64>,
    /// A file in the output's format whose other content is taken over (`--template`).
    pub template: Option<PathBuf>,
    /// What else is read and is never written: mapping files.
    pub inputs: Vec<PathBuf>,
    /// Whether configs, vocabularies and the like go beside the output, which is a folder then.
    pub companions: bool,
    /// The most bytes of one of these; `None` for 256 MiB (`--max-companion-size`).
    pub max_companion: Option<u64>,
    /// Whether finished files stay when the run does not come to its end, and those of an earlier run of the same
    /// conversion are used (`--resume`).
    pub resume: bool,
}

/// What is checked of the output before it is published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verify {
    /// Nothing, neither the output nor whether the weights agree with the source layout.
    None,
    /// Every element is read back.
    Readback,
    /// Every element is read back, and the attention modules are computed from both files.
    #[default]
    Full,
}

/// A conversion that is planned and proved; nothing is written yet.
///
/// ```
/// use qkvconv::{Conversion, ConvertOptions, Destination, Limits, PublishOptions, Verify, select};
///
/// let layouts = select("attention/pytorch-fused", "attention/per-head", &[])?;
/// let scratch = tempfile::tempdir()?;
/// let destination = Destination::resolve(&scratch.path().join("out.safetensors"));
/// let options = ConvertOptions::default().for_destination(&destination)?;
/// let source = "tests/data/digits/model.safetensors".as_ref();
/// let conversion = Conversion::prepare(&layouts, source, &options)?;
/// assert_eq!((conversion.proof.sources, conversion.proof.targets), (43, 118));
/// let publish = PublishOptions::default();
/// let done = conversion.run(&destination, publish, Verify::Full, &Limits::default(), &())?;
/// done.verdict()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Conversion<'a> {
    /// The layouts.
    pub selection: &'a Selection,
    /// The opened source.
    pub reader: Box<dyn Reader>,
    /// The bound checkpoint.
    pub bound: Bound,
    /// What will be copied.
    pub plan: Plan,
    /// What was proved of the plan.
    pub proof: Proof,
    /// The output's files, headers and places.
    pub layout: OutputLayout,
    /// What goes beside the output.
    pub companions: Companions,
    /// Everything odd but harmless that was seen.
    pub warnings: Vec<Diagnostic>,
    /// Whether the caller vouches for the source layout, so that the weights are not asked.
    pub trust_layout: bool,
    /// As [`ConvertOptions::resume`].
    pub resume: bool,
    /// As [`ConvertOptions::inputs`], with the configs and the template.
    pub inputs: Vec<PathBuf>,
}

impl std::fmt::Debug for Conversion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conversion")
            .field("plan", &self.plan)
            .field("proof", &self.proof)
            .finish_non_exhaustive()
    }
}

/// A conversion that is done.
#[derive(Debug)]
pub struct Done {
    /// The files that were written; none where the output does not verify.
    pub files: Vec<PathBuf>,
    /// What the execution did.
    pub stats: ExecStats,
    /// What was there of an earlier run, where one was to be resumed.
    pub kept: Option<Kept>,
    /// What was checked, if anything.
    pub checked: Option<Checked>,
}

impl Done {
    /// Tells whether the output verified.
    ///
    /// # Errors
    /// Returns `verify/differs` for everything that differs; nothing was published then.
    pub fn verdict(&self) -> Result<(), Errors> {
        self.checked.as_ref().map_or(Ok(()), Checked::verdict)
    }
}

/// What was checked of a target checkpoint, and what differs.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// What was read back.
    pub read_back: ReadBack,
    /// What was computed, for [`Verify::Full`].
    pub attention: Option<Attention>,
    /// What the weights say of the source layout, unless the caller vouches for it.
    pub evidence: Option<Evidence>,
    /// What the config beside the target says otherwise than its weights.
    pub config: Vec<Diagnostic>,
}

impl Checked {
    /// Returns everything that differs.
    pub fn differences(&self) -> Vec<Diagnostic> {
        let computed = self.attention.iter().flat_map(|attention| attention.differences.iter().cloned());
        self.read_back.diagnostics().into_iter().chain(computed).chain(self.config.iter().cloned()).collect()
    }

    /// Tells whether nothing differs.
    ///
    /// # Errors
    /// Returns `verify/differs` for everything that differs.
    pub fn verdict(&self) -> Result<(), Errors> {
        let mut errors = Collector::default();
        self.differences().into_iter().for_each(|diagnostic| errors.push(diagnostic));
        errors.finish(()).map(|_| ())
    }
}

impl<'a> Conversion<'a> {
    /// Opens the source, binds it, plans and proves; reads headers alone and writes nothing.
    ///
    /// # Errors
    /// Returns everything that headers can tell is wrong.
    pub fn prepare(
        selection: &'a Selection,
        source: &Path,
        options: &ConvertOptions,
    ) -> Result<Conversion<'a>, Errors> {
        let reader = open_as(selection.source(), source, &options.open)?;
        let mapping = selection.mapping();
        let catalog = reader.catalog();
        let mut bind_options = options.bind.clone();
        bind_options.provenance = options.provenance(source, [selection.source().config_file()], catalog)?;
        let mut told = None;
        let mut recorded = false;
        let mut changed = None;
        if let Some(identity) = Identity::read(&catalog.metadata)
            && !options.trust_layout
        {
            let (family, layout) = (&mapping.family, &selection.source().name);
            let agrees = identity.check(family, layout, "--from", &options.bind.axes);
            agrees.map_err(|errors| errors.in_file(Stage::Identity, source))?;
            changed = identity.changed(mapping).map(|warning| warning.file(source));
            recorded = true;
            bind_options.recorded = identity.sizes.into_iter().collect();
        }
        if !options.trust_layout && !recorded {
            let (layout, claims) = (selection.source(), Claims::new(std::slice::from_ref(mapping)));
            let standing = claims.standing(&mapping.family, layout, &bind_options.provenance.of(layout));
            let checked = standing.check(&format!("{}/{}", mapping.family, layout.name), layout);
            told = checked
                .map_err(|error| Errors::from(error.file(source)))?
                .map(|warning| warning.file(source));
        }
        let mut bound = bind(mapping, selection.source(), selection.target(), catalog, &bind_options)?;
        let reader = computed::add(reader, selection, &mut bound, &bind_options)?;
        let catalog = reader.catalog();
        let mut plan = build(&bound, catalog, &bind_options)?;
        let proof = prove(&plan, catalog)?;
        let mut metadata: BTreeMap<String, String> = catalog.metadata.clone();
        metadata.extend(selection.target().metadata.clone());
        // As safetensors' own `save_model` records them (huggingface/safetensors, `bindings/python/py_src/safetensors/torch.py`).
        metadata.extend(
            bound
                .tied
                .iter()
                .map(|&(gone, kept)| (catalog.tensors[gone].key.clone(), catalog.tensors[kept].key.clone())),
        );
        let target = &selection.target().name;
        // What the rest of the file holds is another layout: a reader must know which modules are meant.
        let some = if bound.left.is_empty() { Vec::new() } else { fold_keys(bound.converted_modules()) };
        let identity = Identity::new(&mapping.family, target, &mapping.hash, &bound.sizes).only(some);
        identity.write(&mut metadata);
        let file = selection.target().file.as_deref();
        let format = options.output_format(file, named_format(&plan));
        if selection.target().is_file_set() {
            // From here on names are those of the files that are written.
            bound.targets.iter_mut().for_each(|target| target.key = in_file_of(format, &target.key));
            plan.targets.iter_mut().for_each(|target| target.key = in_file_of(format, &target.key));
        }
        let tensors: Vec<OutputTensor<'_>> = plan
            .targets
            .iter()
            .map(|target| OutputTensor { key: &target.key, dtype: target.dtype, shape: &target.shape })
            .collect();
        let output = OutputOptions {
            format,
            name: options.output_name(file, format),
            max_shard_size: options.output_shard_size(file, format),
            // What a file of the same format says beside its tensors goes along.
            template: options
                .template
                .clone()
                .or_else(|| (reader.format() == format).then(|| catalog.files.first().cloned()).flatten()),
        };
        let mut layout = if selection.target().is_file_set() {
            lay_out_set(&tensors, &metadata, &output)?
        } else {
            lay_out(&tensors, &metadata, &output)?
        };
        let mut beside = Companions::default();
        if options.companions {
            let (largest, outside_links) = (options.max_companion, options.open.allow_outside_links);
            let carry = companions::Carry { largest, outside_links };
            beside = companions::companions(
                selection,
                source,
                &bound,
                (&bind_options.provenance, catalog),
                carry,
            )?;
            layout.companions.append(&mut beside.files);
        }
        let mut warnings: Vec<Diagnostic> = catalog.warnings.iter().chain(&bound.warnings).cloned().collect();
        warnings.extend(std::mem::take(&mut layout.warnings));
        warnings.extend(told.into_iter().chain(changed));
        warnings.extend(beside.warning(source));
        warnings.extend(std::mem::take(&mut beside.left));
        let (companions, trust_layout, resume) = (beside, options.trust_layout, options.resume);
        let config_file = selection.source().config_file();
        let mut inputs = Provenance::files(source, options.config.as_deref(), [config_file]);
        inputs.extend(options.inputs.iter().chain(&options.template).cloned());
        Ok(Conversion {
            selection,
            reader,
            bound,
            plan,
            proof,
            layout,
            companions,
            warnings,
            trust_layout,
            resume,
            inputs,
        })
    }

    /// Opens the output under its temporary names.
    fn reopen(&self, destination: &Destination, files: Vec<PathBuf>) -> Result<Box<dyn Reader>, Errors> {
        if self.selection.target().is_file_set() {
            let names = self.layout.files.iter().map(|file| file.name.clone());
            let files: Vec<_> = names.zip(files).collect();
            return open_set(destination.path(), &files, &OpenOptions::default());
        }
        open_files(destination.path(), &files, &OpenOptions::default())
    }

    /// Returns the bytes of all target tensors.
    pub fn bytes(&self) -> u64 {
        self.plan.targets.iter().map(crate::plan::TensorPlan::bytes).sum()
    }

    /// Writes the output, checks it, and publishes it when it is whole and agrees with the source.
    ///
    /// # Errors
    /// Returns what the system refuses, weights that contradict the source layout, requirements on the weights that do
    /// not hold, a source that changed meanwhile, and cancellation; nothing is left at the destination then. An output
    /// that differs from the source is no error here but [`Done::verdict`], so that a report can say what was found;
    /// nothing of it is kept.
    pub fn run(
        &self,
        destination: &Destination,
        publish: PublishOptions,
        verify: Verify,
        limits: &Limits,
        progress: &dyn Progress,
    ) -> Result<Done, Errors> {
        options::check_resume(self.resume, destination)?;
        check_ending(self.selection.target(), destination)?;
        let evidence = match verify {
            Verify::None => None,
            _ => self.weigh(limits.threads, progress)?,
        };
        let catalog = self.reader.catalog();
        let mut sources = catalog.files.clone();
        sources.push(catalog.path.clone());
        sources.extend(self.inputs.iter().cloned());
        let fingerprint = self.resume.then(|| self.fingerprint());
        let target = self.selection.target();
        let set = FileSet { depths: &target.file_depths(), is_named: &|name: &str| target.names_file(name) };
        let set = target.is_file_set().then_some(&set);
        let mut staging =
            Staging::create(destination, &self.layout, &sources, publish, fingerprint.as_ref(), set)?;
        let made = self.make(&mut staging, destination, verify, limits, progress);
        let mut done = made.map_err(|errors| staging.with_kept(errors))?;
        // What was made of a source that changed is of no use, now or later; nor is what differs from it.
        let unchanged = self.reader.unchanged();
        if unchanged.is_err() || done.verdict().is_err() {
            staging.discard();
            return unchanged.map(|()| done);
        }
        if let Some(checked) = &mut done.checked {
            checked.evidence = evidence;
        }
        done.files = staging.publish()?;
        Ok(done)
    }

    /// Writes the output under its temporary names and checks it.
    fn make(
        &self,
        staging: &mut Staging,
        destination: &Destination,
        verify: Verify,
        limits: &Limits,
        progress: &dyn Progress,
    ) -> Result<Done, Errors> {
        let written = match self.resume {
            true => self.write_by_file(staging, limits, progress),
            false => self.write(staging, limits, progress),
        };
        let (stats, kept) = written.map_err(|errors| errors.written_to(destination.path()))?;
        staging.seal_index(&self.layout, limits.threads, progress)?;
        let checked = match verify {
            Verify::None => None,
            how => {
                let written = self.reopen(destination, staging.temporary_paths())?;
                Some(self.compare(written.as_ref(), how, limits, progress)?)
            }
        };
        Ok(Done { files: Vec::new(), stats, kept, checked })
    }

    fn write(
        &self,
        staging: &Staging,
        limits: &Limits,
        progress: &dyn Progress,
    ) -> Result<(ExecStats, Option<Kept>), Errors> {
        let (catalog, source) = (self.reader.catalog(), self.reader.as_ref());
        let places = &self.layout.placements;
        let stats = execute(&self.plan, catalog, source, staging, places, limits, progress)?;
        staging.seal(&self.layout, 0..self.layout.files.len(), limits.threads, progress)?;
        Ok((stats, None))
    }
}

impl Conversion<'_> {
    /// Checks a target checkpoint, whoever wrote it, against the source, and weighs the source against its layout.
    ///
    /// # Errors
    /// Returns what the system refuses, weights that contradict the source layout, and cancellation; what differs is
    /// part of the result.
    pub fn check(
        &self,
        target: &dyn Reader,
        how: Verify,
        limits: &Limits,
        progress: &dyn Progress,
    ) -> Result<Checked, Errors> {
        let evidence = self.weigh(limits.threads, progress)?;
        Ok(Checked { evidence, ..self.compare(target, how, limits, progress)? })
    }

    /// Compares a target checkpoint with the source.
    fn compare(
        &self,
        target: &dyn Reader,
        how: Verify,
        limits: &Limits,
        progress: &dyn Progress,
    ) -> Result<Checked, Errors> {
        let source = self.reader.as_ref();
        let read_back = read_back(self.selection, &self.bound, source, target, limits.threads, progress)?;
        let attention = match how {
            // Of another type all would be computed with other roundings: the types say what is wrong.
            _ if read_back.other_types => None,
            Verify::Full => {
                let isolated = std::sync::OnceLock::new();
                let (selection, bound, plan) = (self.selection, &self.bound, &self.plan);
                let computation = Computation { selection, bound, plan, source, isolated };
                Some(computation.run(target, limits.threads, progress)?)
            }
            Verify::None | Verify::Readback => None,
        };
        Ok(Checked { read_back, attention, ..Checked::default() })
    }
}

/// Opens a checkpoint as a layout stores it: a set of files whose names count, or any other.
///
/// # Errors
/// Returns everything that is wrong with the headers.
pub fn open_as(layout: &Layout, path: &Path, options: &OpenOptions) -> Result<Box<dyn Reader>, Errors> {
    if layout.is_file_set() && path.is_dir() {
        let (depths, is_named) = (&layout.file_depths(), &|name: &str| layout.names_file(name));
        return open_set(path, &files_of(path, &FileSet { depths, is_named }, options)?, options);
    }
    open(path, options)
}

/// Returns the format that the name of a file in a set says.
fn named_format(plan: &Plan) -> Option<Format> {
    let (file, _) = plan.targets.iter().find_map(|target| target.key.split_once("::"))?;
    Format::of_ending(Path::new(file))
}
