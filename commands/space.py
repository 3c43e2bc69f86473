"""`reluformer space`: a page that translates in the browser; writes it, or serves it on this machine alone."""

import os
import tempfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from reluformer.commands.parsing import Parser
from reluformer.configuration.errors import UserError, one_line


class _Server(ThreadingHTTPServer):
    allow_reuse_address = os.name != "nt"  # on Windows, two servers could listen on one port


class _Files(SimpleHTTPRequestHandler):
    # Windows' registry may say otherwise, and a browser refuses scripts of another kind.
    extensions_map = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # the page of another model, or of a newer version, may follow
        super().end_headers()


def run(arguments: list[str]) -> int:
    """The verb, with the arguments after its name; without `--output` it serves until it is interrupted."""
    parser = Parser(
        prog="reluformer space",
        description="A page of static files that translates in the reader's browser and shows the attention of every "
        "head: serves it on this machine alone, or writes it with --output. Needs pip install 'reluformer[space]'; the "
        "first time it fetches ONNX Runtime for the web (33 MB) from the npm registry.",
    )
    add, example = parser.add_argument, "to begin with; may be repeated; default: the run's"
    add("--model", required=True, metavar="PATH_OR_ID", help="run folder, checkpoint or id on the Hub")
    add("--second", metavar="PATH_OR_ID", help="another model, to be shown beside it")
    add("--output", metavar="FOLDER", help="new folder to write the page into, instead of serving it")
    add("--port", type=int, default=7860, help="default: 7860")
    add("--example", action="append", default=[], metavar="TEXT", help=example)
    options = parser.parse_args(arguments)

    from reluformer.hub_cards.space import write_page

    models = [model for model in (options.model, options.second) if model is not None]
    if options.output is not None:
        folder = write_page(models, options.output, options.example)
        print(f"{folder}: any web server serves it; on the Hub: hf upload ME/NAME {folder} --repo-type space")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page"
        # first: a port that is taken is told before minutes of exporting
        with page_server(page, options.port) as server:
            write_page(models, page, options.example)
            print(f"{' and '.join(models)}: http://127.0.0.1:{server.server_port}  (Ctrl-C ends it)", flush=True)
            server.serve_forever()
    return 0


def page_server(page: Path, port: int) -> ThreadingHTTPServer:
    """Serves a page's files to this machine; 0: a free port."""
    try:
        return _Server(("127.0.0.1", port), partial(_Files, directory=page))
    except (OSError, OverflowError) as error:
        raise UserError(f"--port: {port} cannot be listened on ({one_line(error)}); give another, 0 for any") from error
