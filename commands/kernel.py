"""`reluformer kernel`: the attention as a folder for the Hub."""

from reluformer.commands.parsing import Parser


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; returns the exit status."""
    from reluformer.hub_cards.kernel import DEFAULT_REPO_ID, VERSION, write_kernel

    parser = Parser(
        prog="reluformer kernel",
        description="Writes a folder that can be pushed to the Hub as a kernel for the library `kernels`: "
        "relu_attention "
        "with its Triton kernels, without Transformers.",
    )
    add, where = parser.add_argument, f"where it will be on the Hub; default: {DEFAULT_REPO_ID}, to be changed"
    add("--output", required=True, metavar="FOLDER", help="new folder to write")
    add("--repo_id", default=DEFAULT_REPO_ID, metavar="OWNER/NAME", help=where)
    options = parser.parse_args(arguments)
    folder = write_kernel(options.output, repo_id=options.repo_id)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {options.repo_id}, version {VERSION}, {size / 1000:,.0f} kB")
    return 0
