use std::{
    env,
    path::PathBuf,
    process::{Command, exit},
};
fn main() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_path_buf();
    let status = Command::new(env!("CARGO"))
        .current_dir(&root)
        .args([
            "build",
            "--release",
            "-p",
            "image",
            "--target",
            "x86_64-unknown-none",
        ])
        .status()
        .unwrap();
    assert!(status.success());
    let elf = root.join("target/x86_64-unknown-none/release/kernel");
    let stripped = root.join("target/kernel.elf");
    let objcopy = String::from_utf8(
        Command::new("rustc")
            .args(["--print", "sysroot"])
            .output()
            .unwrap()
            .stdout,
    )
    .unwrap();
    let objcopy =
        PathBuf::from(objcopy.trim()).join("lib/rustlib/x86_64-unknown-linux-gnu/bin/llvm-objcopy");
    assert!(
        Command::new(objcopy)
            .arg("--strip-debug")
            .arg(&elf)
            .arg(&stripped)
            .status()
            .unwrap()
            .success()
    );
    let img = root.join("target/bios.img");
    bootloader::DiskImageBuilder::new(stripped)
        .create_bios_image(&img)
        .unwrap();
    let st = Command::new("qemu-system-x86_64")
        .args([
            "-nodefaults",
            "-vga",
            "std",
            "-display",
            "none",
            "-accel",
            "tcg",
            "-cpu",
            "max",
            "-smp",
            "2",
            "-m",
            "256",
            "-no-reboot",
            "-serial",
            "stdio",
            "-device",
            "isa-debug-exit,iobase=0xf4,iosize=0x04",
        ])
        .arg("-drive")
        .arg(format!("format=raw,file={}", img.display()))
        .args(env::args().skip(1))
        .status()
        .unwrap();
    exit(if st.code() == Some(33) { 0 } else { 1 });
}
