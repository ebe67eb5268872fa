//! bpftrace's tools: which of them compile.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use debug_info::DebugInfo;
use trace_compiler::Missing;
use trace_interface::script::Attachment;

use crate::{
    groups::Groups,
    rules::Rules,
    world::{AnyKernel, Outcome, Renamed, compiled, compiled_with},
};

/// Whether it sees what the kernel does.
fn is_of_code(attachment: &Attachment) -> bool {
    let is_alone = matches!(
        attachment,
        Attachment::Begin { .. } | Attachment::End { .. } | Attachment::Interval { .. }
    );
    !is_alone
}

/// Compiles the tools, for a real kernel, too, if there is one, and prints the figures.
pub fn hold(checkout: &Path, kernel: Option<&Path>) -> Result<()> {
    let rules = Rules::new();
    let kernel = kernel.map(DebugInfo::open).transpose()?;
    let mut paths = Vec::new();
    for folder in ["tools", "tools/old"].map(|folder| checkout.join(folder)) {
        let files = fs::read_dir(&folder);
        for file in files.with_context(|| format!("no {}", folder.display()))? {
            paths.push(file?.path());
        }
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "bt"));
    paths.sort();
    let (mut refused, mut renamed) = (Groups::default(), 0);
    let (mut unchanged, mut in_part) = (Vec::new(), Vec::new());
    for path in &paths {
        let text = fs::read_to_string(path)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let with_some = match &kernel {
            Some(kernel) => compiled(&rules.renamed(&text), &[], &Renamed(kernel)),
            None => compiled(&rules.renamed(&text), &[], &AnyKernel::default()),
        };
        match with_some {
            Outcome::Taken(_) => renamed += 1,
            Outcome::Refused { message, .. } => refused.add(&message, &name, ""),
        }
        if let Some(kernel) = &kernel
            && let Outcome::Taken(taken) = compiled_with(&text, &[], kernel, Missing::Ignored)
            && taken.script.attachments.iter().any(is_of_code)
        {
            in_part.push(name.clone().into_owned());
        }
        if let Some(kernel) = &kernel
            && let Outcome::Taken(_) = compiled(&text, &[], kernel)
        {
            unchanged.push(name.into_owned());
        }
    }
    println!(
        "\n3. Tools: {renamed} of {} compile where each probe finds its place",
        paths.len()
    );
    refused.print(true);
    if kernel.is_some() {
        println!("\nUnchanged: {}: {}", unchanged.len(), unchanged.join(", "));
        println!(
            "\nWithout the probes that find no place: {}: {}",
            in_part.len(),
            in_part.join(", ")
        );
    }
    Ok(())
}
