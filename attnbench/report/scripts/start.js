// All parts are there: show what the URL asks for, then unpack the charts.
for (const element of document.querySelectorAll(".needs-script, #explorer")) element.hidden = false;
page.start();
page.load().catch((error) => {
  page.$("explorer-note").textContent = `The charts could not be made: ${error.message}. The pictures and tables below are complete.`;
  throw error;
});
